"""A ledger of messages: what came in, and how each of them ended, over any number of processes.

A message is known by its number, which is its payload and so survives every hop. A message ends
when it is processed or when there is a dead letter of it. One that came in and has no end is lost;
each end more than it came in is a duplicate.

Every entry is one line, appended by one system call: a process that is killed has written all that
it did, or nothing of it. Processing is entered *before* its acknowledgement, as an application's
own effects are.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

Event = Literal["sent", "delivered", "retried", "processed", "dead"]

T = TypeVar("T")

#: Seconds for everything to come to its end.
SOON = 120.0


@attrs.frozen
class Account:
    """What a ledger says, all messages together.

    Attributes:
        sent: How many messages came in.
        deliveries: How often they were delivered.
        retried: How many retry letters were asked for.
        processed: How many ends there were without a dead letter.
        dead: How many dead letters there are.
        lost: The numbers of messages without an end.
        twice: How many ends each message has more than it came in, if any.
        strange: Numbers that ended and never came in.
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
        """How many ends there are too many."""
        return self.twice.total()

    def __str__(self) -> str:
        return (
            f"in {self.sent}, delivered {self.deliveries}, retried {self.retried}, processed "
            f"{self.processed}, dead {self.dead}, lost {len(self.lost)}, duplicates "
            f"{self.duplicates}"
        )


class Ledger:
    """Counts messages by number. Thread-safe, and safe with other processes on the same file."""

    def __init__(self, path: str | Path) -> None:
        """Open the ledger at *path*, or make it."""
        self.path = Path(path)
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def enter(self, event: Event, what: Any) -> int:
        """Enter an event of the message, or of the message with the number, *what*."""
        number = what if isinstance(what, int) else number_of(what)
        os.write(self._file, f"{event} {number}\n".encode())
        return number

    def enter_all(self, event: Event, messages: Iterable[Any]) -> None:
        """Enter an event of each of *messages*."""
        for message in messages:
            self.enter(event, message)

    def counts(self) -> dict[Event, Counter[int]]:
        """Return how often each event befell each number."""
        counts: dict[Any, Counter[int]] = {
            event: Counter() for event in ("sent", "delivered", "retried", "processed", "dead")
        }
        for line in self.path.read_text(encoding="ascii").splitlines():
            event, number = line.split()
            counts[event][int(number)] += 1
        return counts

    def open(self) -> frozenset[int]:
        """Return the numbers of messages that came in and have not ended."""
        counts = self.counts()
        return frozenset(counts["sent"] - counts["processed"] - counts["dead"])

    def account(self) -> Account:
        """Return what it says by now."""
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


def payload(number: int) -> bytes:
    """Return the payload of the message of that number."""
    return b"%d" % number


def number_of(message: Any) -> int:
    """Return the number of a message, of its letter or of its dead letter."""
    return int(message.data())


def wait_until(condition: Callable[[], bool], within: float = SOON) -> float:
    """Wait until *condition* holds, or *within* seconds; return how many it took."""
    began = time.monotonic()
    while not condition() and time.monotonic() - began < within:
        time.sleep(0.05)
    return time.monotonic() - began


def patiently(ask: Callable[[], T], refusal: type[Exception], within: float = SOON) -> T:
    """Ask again after each *refusal*, for *within* seconds; return the answer."""
    deadline = time.monotonic() + within
    while True:
        try:
            return ask()
        except refusal:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
