"""The demo's account: what became of each published record, by what the broker has. Pure.

A record counts once, under its key, where it ended: processed, if there is a result of it, or
dead, if there is a dead letter. Pulsar delivers at least once, so a result or a dead letter may
be there twice; such copies are reported and are no fault. A fault is a record that ended nowhere,
in both places, or that nobody published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import attrs

from pulsar_retry import RetryProperties

__all__ = ["Account", "DeadRecord", "reckon"]

#: The reason of a dead letter that carries none: its retries are used up.
RETRIES_EXHAUSTED = "retries-exhausted"


class Message(Protocol):
    """What is read of a `pulsar.Message`."""

    def partition_key(self) -> str:
        """Return the key."""
        ...

    def data(self) -> bytes:
        """Return the payload."""
        ...

    def properties(self) -> dict[str, str]:
        """Return the properties."""
        ...

    def redelivery_count(self) -> int:
        """Return how often the broker redelivered it."""
        ...


@attrs.frozen
class DeadRecord:
    """A dead letter as it was read.

    Attributes:
        key: The record's key.
        payload: Its payload as text.
        properties: All of its properties.
    """

    key: str
    payload: str
    properties: dict[str, str]

    @classmethod
    def of(cls, message: Message) -> DeadRecord:
        """Take what counts of a message."""
        properties = dict(message.properties())
        return cls(message.partition_key(), message.data().decode(errors="replace"), properties)

    @property
    def reason(self) -> str:
        """Why it is dead."""
        return self.properties.get("FAILURE_REASON", RETRIES_EXHAUSTED)

    @property
    def reconsume_times(self) -> int:
        """Its count; one more than there were retries when these were used up."""
        return RetryProperties.read(self.properties).reconsume_times


@attrs.frozen
class Account:
    """What became of the published records.

    Attributes:
        published: The keys that have the broker's receipt.
        processed: Key to the number of its retries, of the records that have a result.
        dead: Key to dead letter.
        copies: Results and dead letters beyond a key's first.
        retries: How often a record may be retried.
    """

    published: frozenset[str]
    processed: Mapping[str, int]
    dead: Mapping[str, DeadRecord]
    copies: int
    retries: int

    @property
    def missing(self) -> list[str]:
        """The records that ended nowhere."""
        return sorted(self.published - self.processed.keys() - self.dead.keys())

    @property
    def in_both(self) -> list[str]:
        """The records that were processed and are dead all the same."""
        return sorted(self.processed.keys() & self.dead.keys())

    @property
    def unknown(self) -> list[str]:
        """The records that nobody published."""
        return sorted((self.processed.keys() | self.dead.keys()) - self.published)

    @property
    def is_balanced(self) -> bool:
        """Whether each published record ended in exactly one place, and there is no other."""
        return not (self.missing or self.in_both or self.unknown)

    @property
    def reasons(self) -> dict[str, int]:
        """How many records are dead for which reason, the most frequent first."""
        return dict(Counter(letter.reason for letter in self.dead.values()).most_common())

    @property
    def retried(self) -> dict[int, int]:
        """How many records came to which attempt, of those from the second on."""
        made = [*self.processed.values()]
        made += [min(letter.reconsume_times, self.retries) for letter in self.dead.values()]
        return {
            attempt: sum(retries + 1 >= attempt for retries in made)
            for attempt in range(2, self.retries + 2)
        }

    def samples(self, count: int) -> list[DeadRecord]:
        """Return up to *count* dead letters, of as many different reasons as possible."""
        by_reason: dict[str, list[DeadRecord]] = {}
        for key in sorted(self.dead):
            by_reason.setdefault(self.dead[key].reason, []).append(self.dead[key])
        rounds = range(max(map(len, by_reason.values()), default=0))
        turns = (by_reason[reason][turn : turn + 1] for turn in rounds for reason in self.reasons)
        return [letter for turn in turns for letter in turn][:count]


def reckon(
    published: Iterable[str],
    results: Iterable[Message],
    dead_letters: Iterable[Message],
    *,
    retries: int,
) -> Account:
    """Return the account of what was published and of what the broker has."""
    processed: dict[str, int] = {}
    dead: dict[str, DeadRecord] = {}
    read = 0
    for result in results:
        read += 1
        processed.setdefault(result.partition_key(), int(result.properties()["retries"]))
    for message in dead_letters:
        read += 1
        dead.setdefault(message.partition_key(), DeadRecord.of(message))
    copies = read - len(processed) - len(dead)
    return Account(frozenset(published), processed, dead, copies, retries)


def account_as_json(account: Account, samples: int) -> dict[str, Any]:
    """Return the account as what `--json` prints."""
    return {
        "ok": account.is_balanced,
        "published": len(account.published),
        "processed": len(account.processed),
        "dead_lettered": len(account.dead),
        "retried": {str(attempt): count for attempt, count in account.retried.items()},
        "reasons": account.reasons,
        "copies": account.copies,
        "missing": account.missing,
        "in_both": account.in_both,
        "unknown": account.unknown,
        "samples": [attrs.asdict(letter) for letter in account.samples(samples)],
    }
