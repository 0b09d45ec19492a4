"""What the log of durable lanes writes again; tests/integration/pull/ has it on a broker."""

from __future__ import annotations

from typing import Any

import pulsar

from pulsar_retry.pull.durable.log import ClaimLog
from pulsar_retry.wire.lanes import Head, decode


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
