"""The wall clock of a client is changed while messages wait."""

from __future__ import annotations

import time

import pytest

from pulsar_retry.runtime.clock import Clock
from support.faults.handing import manage, publish, subscribe
from support.reading import SOON

COUNT = 50

#: Seconds by which the clock is changed. The jump ahead is short, because letters that are made
#: after it wait that much longer.
JUMPS = {"back": -3600.0, "ahead": 3.0}


def jump(monkeypatch, seconds):
    """Change the clock of this process by *seconds*."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    monkeypatch.setattr(Clock, "time", staticmethod(time.time))


@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS)
def test_letters_that_are_made_after_the_clock_is_set(stage, fault, monkeypatch, seconds):
    """Pulsar's delays are absolute times, so they are wrong by as much as the clock."""
    jump(monkeypatch, seconds)
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    fault.is_over()
    began = time.monotonic()
    account = stage.finish(manage)

    assert time.monotonic() - began > seconds
    fault.survived(
        "client's clock an hour behind, or 3 s ahead, while letters are published",
        account,
        bound=0,
    )


@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS)
def test_nacks_while_the_clock_is_set(stage, fault, monkeypatch, seconds):
    """The delays of nacks are measured by a clock that cannot be set."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    consumer = subscribe(stage.client, stage.topic)
    began = time.monotonic()
    for _ in range(COUNT):
        message = consumer.receive(SOON)
        stage.ledger.enter("delivered", message)
        consumer.negative_acknowledge(message, delay=3)
    jump(monkeypatch, seconds)
    fault.is_over()
    for _ in range(COUNT):
        message = consumer.receive(SOON)
        assert time.monotonic() - began >= 2.8
        stage.ledger.enter("delivered", message)
        stage.ledger.enter("processed", message)
        consumer.acknowledge(message)
    consumer.close()

    fault.survived(
        "client's clock set back an hour, or ahead 3 s, while nacked messages wait 3 s",
        stage.account(),
        bound=0,
    )
