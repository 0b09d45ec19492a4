"""What the log of durable lanes writes again; tests/integration/pull/ has it on a broker."""

from __future__ import annotations

import time
from typing import Any

import pulsar
import pytest

from pulsar_retry.pull.durable.log import ClaimLog
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.wire.lanes import Head, LaneClaim, decode


class Producer:
    """Stores what it is given when it is told so, or fails."""

    def __init__(self) -> None:
        """Make one without records."""
        self.waiting: list[tuple[Any, Any]] = []
        self.stored: list[Any] = []

    def send_async(self, payload: bytes, ended: Any, partition_key: str) -> None:
        """Take a record."""
        self.waiting.append((decode(partition_key, payload), ended))

    def end(self, result: pulsar.Result) -> None:
        """End all that wait."""
        waiting, self.waiting = self.waiting, []
        for record, ended in waiting:
            if result == pulsar.Result.Ok:
                self.stored.append(record)
            ended(result, None)


def test_what_is_written_again_replaces_nothing_newer() -> None:
    """Records that could not be written keep their order, and give way to newer ones."""
    log: Any = ClaimLog(None, "log")  # type: ignore[arg-type] - it is not opened
    log._producer = producer = Producer()
    for attempts in (1, 2):
        log.write(Head("a", attempts=attempts))
        log.write(Head("b", attempts=attempts))
    producer.end(pulsar.Result.Timeout)
    assert "Timeout" in log.troubles["written"]
    log.write(Head("a", attempts=3))
    log._again_at = 0.0
    log._write_again()
    producer.end(pulsar.Result.Ok)
    assert not log.troubles
    assert {each.lane: each.attempts for each in producer.stored} == {"a": 3, "b": 2}


def test_an_idle_log_is_rarely_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is held; with a key that is held, what others write is seen soon."""
    memory = MemoryBroker()
    looks: list[float] = []
    monkeypatch.setattr(memory.clock, "interval", lambda seconds: seconds)
    read = ClaimLog._read
    monkeypatch.setattr(ClaimLog, "_read", lambda log: (looks.append(1), read(log)))
    log = ClaimLog(memory.client(), "log", memory.clock)
    log.open()
    memory.clock.advance(60)
    assert 10 <= len(looks) <= 14
    log.write(LaneClaim("a", "1", "me", 0.0))
    memory.clock.advance(5)
    looks.clear()
    memory.clock.advance(6)
    assert len(looks) >= 50
    log.close()
    memory.close()


def test_a_message_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the log was idle."""
    memory = MemoryBroker()
    monkeypatch.setattr(memory.clock, "interval", lambda seconds: seconds)
    log = ClaimLog(memory.client(), "log", memory.clock)
    log.open()
    memory.clock.advance(58)
    ticket = log.ticket()
    memory.clock.advance(0.003)
    assert log.passed >= ticket
    log.close()
    memory.close()


def test_a_log_that_pauses_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time, too: nobody else lets that pass."""
    memory = MemoryBroker()
    monkeypatch.setattr("pulsar_retry.pull.durable.log._PAUSE", 10.0)
    log = ClaimLog(memory.client(), "log", memory.clock)
    log.open()
    ticket = log.ticket()
    while log.passed < ticket:
        time.sleep(0.001)
    log.close()
    memory.close()


def test_a_failed_read_may_be_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted topic refuses requests before its readers have lost the connection, or after."""
    memory, refusals, cuts = MemoryBroker(), list[int](), list[int]()
    monkeypatch.setattr(memory.clock, "interval", lambda seconds: seconds)
    read = ClaimLog._read

    def refused_once(log: ClaimLog) -> None:
        if refusals:
            refusals.clear()
            raise pulsar.PulsarException("Pulsar error: BrokerMetadataError")
        read(log)

    monkeypatch.setattr(ClaimLog, "_read", refused_once)
    log = ClaimLog(memory.client(), "log", memory.clock)
    log.cut.append(lambda: cuts.append(1))
    log.open()
    refusals.append(1)
    memory.clock.advance(10)
    assert cuts
    assert not log.troubles
    log.close()
    memory.close()
