"""Runs the queue of nacks in virtual time, with a model of pulsar-client's timer."""

from __future__ import annotations

import math
from typing import Any

import attrs

from pulsar_retry.consumer.source import LEAD, Source


@attrs.frozen
class Id:
    """A raw message id."""

    number: int
    index: int = -1
    of_partition: int = -1

    def ledger_id(self) -> int:
        """Return the ledger: a new one every thousand entries."""
        return self.number // 1000

    def entry_id(self) -> int:
        """Return the entry."""
        return self.number % 1000

    def batch_index(self) -> int:
        """Return the index in a batch."""
        return self.index

    def partition(self) -> int:
        """Return the partition."""
        return self.of_partition

    def serialize(self) -> bytes:
        """Return bytes, which have nothing of a chunked message."""
        return b""


class World:
    """A clock, a timer, and pulsar-client's consumer, whose timer restarts with each nack."""

    def __init__(self, cost: float = 3e-6, *, redelivers_all: bool = False) -> None:
        self.time = 1000.0
        self.cost = cost
        self.released: dict[int, float] = {}
        self.calls = 0
        self._nacked: list[tuple[float, int]] = []
        self._tick = math.inf
        self._due = math.inf
        self.redeliveries: list[float] = []
        self.asked_for_all: list[float] = []
        self.not_retried: set[tuple[int, int]] = set()
        self.queue = Source(
            self,  # type: ignore[arg-type]
            self.not_retried.update,
            redelivers_all=redelivers_all,
        )
        self.queue.raw = self

    def now(self) -> float:
        """Return the virtual time."""
        return self.time

    def check_later(self, _owner: Any, delay: float) -> None:
        """Set the timer, unless it is due earlier."""
        self._due = min(self._due, self.time + max(0.0, delay))

    def discard(self, _owner: Any) -> None:
        """Cancel the timer."""
        self._due = math.inf

    def negative_acknowledge(self, message_id: Id) -> None:
        """Nack a message, as pulsar-client's consumer does."""
        self._advance_client(self.time + self.cost)
        self.time += self.cost
        self.calls += 1
        self._nacked.append((self.time, message_id.number))
        self._tick = self.time + LEAD / 3

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything redelivered."""
        self.asked_for_all.append(self.time)

    def _advance_client(self, until: float) -> None:
        while self._tick <= until:
            tick, keep = self._tick, []
            for since, number in self._nacked:
                if since + LEAD <= tick:
                    self.released.setdefault(number, tick)
                else:
                    keep.append((since, number))
            if len(keep) < len(self._nacked):
                self.redeliveries.append(tick)
            self._nacked = keep
            self._tick = tick + LEAD / 3 if keep else math.inf

    def run(self, until: float) -> None:
        """Let virtual time pass until *until* seconds from the start."""
        until += 1000.0
        while self._due <= until:
            self.time, self._due = max(self.time, self._due), math.inf
            self._advance_client(self.time)
            self.queue.check()
        self.time = max(self.time, until)
        self._advance_client(self.time)

    def at(self, number: int) -> float:
        """Return when an entry was redelivered, in seconds from the start."""
        return self.released[number] - 1000.0
