"""A ledger of messages: which were sent, and how each of them ended, over any number of processes.

A message is known by its number, which is its payload, so every letter keeps it. A message has a
completion when it is processed, or when there is a dead letter of it. A message that was sent and
has no completion is lost. Duplicates are completions beyond the number of times that the message
was sent, which is usually one.

Every entry is one line, appended by one system call: nothing of another process is in its middle.
Processing is entered *before* its acknowledgement, like the effects of a real application.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

import pulsar_retry as pr
from pulsar_retry.wire.names import logical
from support.appended import whole_lines

Event = Literal["sent", "delivered", "retried", "processed", "dead"]

T = TypeVar("T")

#: Seconds for every message to end.
SOON = 180.0


@attrs.frozen
class Account:
    """The content of a ledger, summed over all messages.

    Attributes:
        sent: How many messages were sent.
        deliveries: How often they were delivered.
        retried: How many retry letters were requested.
        processed: The completions without a dead letter.
        dead: How many dead letters there are.
        lost: The numbers of messages without a completion.
        twice: For each message with duplicates, how many: completions beyond the number of times
            it was sent.
        strange: Numbers of messages that have a completion, but were never sent.
    """

    sent: int
    deliveries: int
    retried: int
    processed: int
    dead: int
    lost: frozenset[int]
    twice: Counter[int]
    strange: frozenset[int]

    @property
    def duplicates(self) -> int:
        """The number of duplicates."""
        return self.twice.total()

    def __str__(self) -> str:
        return (
            f"in {self.sent}, delivered {self.deliveries}, retried {self.retried}, processed "
            f"{self.processed}, dead {self.dead}, lost {len(self.lost)}, duplicates "
            f"{self.duplicates}"
        )


class Ledger:
    """Counts messages by number. Safe for several threads, and for several processes on a file.

    Attributes:
        asked: When this process first asked for a retry of a message, by its number.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the ledger at *path*, or create it."""
        self.path = Path(path)
        self.asked: dict[int, float] = {}
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def enter(self, event: Event, what: Any) -> int:
        """Enter an event of a message; *what* is the message or its number.

        The entry of a message also names the copy: its place, its count and its id.
        """
        number = what if isinstance(what, int) else number_of(what)
        if event == "retried":
            self.asked.setdefault(number, time.monotonic())
        copy = "" if isinstance(what, int) else f" {_copy(what)}"
        os.write(self._file, f"{event} {number} {os.getpid()}{copy}\n".encode())
        return number

    def enter_all(self, event: Event, messages: Iterable[Any]) -> None:
        """Enter an event of each of *messages*."""
        for message in messages:
            self.enter(event, message)

    def counts(self) -> dict[Event, Counter[int]]:
        """Return how often each event happened to each number."""
        counts: dict[Any, Counter[int]] = {
            event: Counter() for event in ("sent", "delivered", "retried", "processed", "dead")
        }
        for line in whole_lines(self.path):
            event, number, *_ = line.split()
            counts[event][int(number)] += 1
        return counts

    def open(self) -> frozenset[int]:
        """Return the numbers of messages that were sent and have no completion."""
        counts = self.counts()
        return frozenset(counts["sent"] - counts["processed"] - counts["dead"])

    def account(self) -> Account:
        """Return the present account."""
        counts = self.counts()
        sent, ends = counts["sent"], counts["processed"] + counts["dead"]
        return Account(
            sent=sent.total(),
            deliveries=counts["delivered"].total(),
            retried=counts["retried"].total(),
            processed=counts["processed"].total(),
            dead=counts["dead"].total(),
            lost=frozenset(sent.keys() - ends.keys()),
            twice=Counter({n: count - sent[n] for n, count in ends.items() if count > sent[n] > 0}),
            strange=frozenset(ends.keys() - sent.keys()),
        )


def _copy(message: Any) -> str:
    """Return the place of a message, its count of retries, and its id."""
    kinds = {"-RETRY": "retry", "-DLQ": "dlq"}
    topic, where = logical(message.topic_name()), message.message_id()
    place = next((kind for suffix, kind in kinds.items() if topic.endswith(suffix)), "main")
    count = pr.RetryProperties.of(message).reconsume_times
    position = ":".join(
        str(part())
        for part in (where.ledger_id, where.entry_id, where.partition, where.batch_index)
    )
    return f"{place} {count} {position}"


def payload(number: int) -> bytes:
    """Return the payload of the message with that number."""
    return b"%d" % number


def number_of(message: Any) -> int:
    """Return the number of a message, or of its letter or dead letter."""
    return int(message.data())


def patiently(ask: Callable[[], T], refusal: type[Exception], within: float = SOON) -> T:
    """Call again after each *refusal*, for *within* seconds; return the result."""
    deadline = time.monotonic() + within
    while True:
        try:
            return ask()
        except refusal:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
