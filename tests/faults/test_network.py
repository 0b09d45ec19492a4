"""Connections that are cut, reset, half-open and slow, by a proxy before the broker."""

from __future__ import annotations

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.proxy import BREAKS
from support.faults.handing import manage, publish, retry_many
from support.faults.ledger import wait_until
from support.faults.pushing import push

COUNT = 300

#: Deliveries after which the fault strikes: letters are on their way then.
SOME = 50

#: Seconds for which nothing passes: more than the letters' send time-out below.
PAUSE = 5.0

#: What goes wrong, and what follows.
CUTS = {
    "cut": ("connection cut", "the client connects again"),
    "refuse": (
        f"connection cut, and refused for {PAUSE:g} s",
        "the client tries until it may connect",
    ),
    "reset": ("connection reset", "the client connects again"),
    "half-open": (
        f"connection half-open for {PAUSE:g} s",
        "letters time out; their originals come again",
    ),
    "deaf": (
        f"no receipt comes for {PAUSE:g} s, then the connection is reset",
        "letters are stored and time out: both live on",
    ),
    "mute": (
        f"nothing reaches the broker for {PAUSE:g} s, then the connection is reset",
        "what was sent is lost, the originals come again",
    ),
}


@pytest.fixture
def through(stage, proxy):
    """Give the stage as seen through the proxy; messages are published past it."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(proxy.url, logger=quiet) as client:
        yield attrs.evolve(stage, client=client)
        proxy.mend()


def begun(stage):
    """Wait until letters are on their way."""
    wait_until(lambda: stage.ledger.account().deliveries >= SOME)


@pytest.mark.parametrize("way", [retry_many, manage, push])
@pytest.mark.parametrize("cut", CUTS)
def test_a_connection_that_breaks(through, proxy, fault, way, cut):
    """Letters on their way, receipts and acknowledgements are lost with it; messages are not."""
    name, effect = CUTS[cut]
    with through.working(way, letter_send_timeout=3):
        begun(through)
        BREAKS[cut](proxy, PAUSE)
        proxy.mend()
        fault.is_over()

    fault.survived(
        name,
        effect,
        through.account(),
        # Originals come again and have new letters, letters are sent again and come again.
        bound=3 * COUNT,
        why="letters and acknowledgements under way",
    )


def test_a_slow_connection(through, proxy, fault):
    """Each piece takes 0.2 s, both ways: it all takes longer, that is all."""
    with through.working(retry_many):
        begun(through)
        proxy.delay = 0.2
        fault.is_over()

    fault.survived("connection slow, 0.4 s more a round trip", "none", through.account(), bound=0)
