"""A proxy before the broker cuts, resets, stalls and slows connections."""

from __future__ import annotations

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.proxy import BREAKS
from support.faults.handing import manage, publish, retry_many
from support.faults.pushing import push
from support.waiting import eventually

COUNT = 300

#: The fault happens after this many deliveries, when letters are in flight.
SOME = 50

#: Seconds for which the proxy passes no data: more than the letters' send time-out below.
PAUSE = 5.0

#: For each fault of the proxy: what goes wrong.
CUTS = {
    "cut": "connection cut",
    "refuse": f"connection cut, and new connections refused for {PAUSE:g} s",
    "reset": "connection reset",
    "half-open": f"connection half-open for {PAUSE:g} s: it stays open, but no data passes",
    "no data to client": f"connection without data from the broker for {PAUSE:g} s, then reset",
    "no data to server": f"connection without data to the broker for {PAUSE:g} s, then reset",
}


@pytest.fixture
def through(stage, proxy):
    """Give the stage with a client of the proxy; messages are published without the proxy."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(proxy.url, operation_timeout_seconds=90, logger=quiet) as client:
        yield attrs.evolve(stage, client=client)
        proxy.mend()


def begun(stage):
    """Wait until letters are in flight."""
    eventually(lambda: stage.ledger.account().deliveries >= SOME)


@pytest.mark.parametrize("way", [retry_many, manage, push])
@pytest.mark.parametrize("cut", CUTS)
def test_a_connection_that_breaks(through, proxy, fault, way, cut):
    """Letters, receipts and acknowledgements in transit are lost, but no message is."""
    with through.working(way, letter_send_timeout=3):
        begun(through)
        BREAKS[cut](proxy, PAUSE)
        proxy.mend()
        fault.is_over()

    fault.survived(
        CUTS[cut],
        through.account(),
        # Originals are delivered again and get new letters; letters are sent and delivered again.
        bound=3 * COUNT,
    )


def test_a_slow_connection(through, proxy, fault):
    """The proxy delays all data by 0.2 s in each direction, and everything takes longer."""
    with through.working(retry_many):
        begun(through)
        proxy.delay = 0.2
        fault.is_over()

    fault.survived(
        "connection slow: each round trip takes 0.4 s longer",
        through.account(),
        bound=0,
    )
