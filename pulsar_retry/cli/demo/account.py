"""The demo's account: where each published record ended, according to the broker. Pure.

A record counts once, by its key: as processed if there is a result, or as dead if there is a dead
letter. Pulsar delivers at least once, so there may be several copies of a result or a dead letter.
Copies are reported, but are not an error. These are errors: a record that ended nowhere, a record
that ended in both places, and a record that was never published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import attrs

from pulsar_retry import RetryProperties

__all__ = ["Account", "DeadRecord", "reckon"]

#: The reason of a dead letter without a reason property: its retries are used up.
RETRIES_EXHAUSTED = "retries-exhausted"


class Message(Protocol):
    """The part of a `pulsar.Message` that is read."""

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
        """Return how often the broker has redelivered it."""
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
        """Read the relevant parts of a message."""
        properties = dict(message.properties())
        return cls(message.partition_key(), message.data().decode(errors="replace"), properties)

    @property
    def reason(self) -> str:
        """Why it is dead."""
        return self.properties.get("FAILURE_REASON", RETRIES_EXHAUSTED)

    @property
    def reconsume_times(self) -> int:
        """Its count; if the retries are used up, it is one more than the number of retries."""
        return RetryProperties.read(self.properties).reconsume_times


@attrs.frozen
class Account:
    """Where the published records ended.

    Attributes:
        published: The keys for which there is a receipt.
        processed: The number of retries, by key, of the records that have a result.
        dead: The dead letters by key.
        copies: Results and dead letters beyond the first of each key.
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
        """The records that have both a result and a dead letter."""
        return sorted(self.processed.keys() & self.dead.keys())

    @property
    def unknown(self) -> list[str]:
        """The records that were never published."""
        return sorted((self.processed.keys() | self.dead.keys()) - self.published)

    @property
    def is_balanced(self) -> bool:
        """Whether each published record ended in exactly one place, and no other record exists."""
        return not (self.missing or self.in_both or self.unknown)

    @property
    def reasons(self) -> dict[str, int]:
        """How many records are dead for each reason, the most frequent first."""
        return dict(Counter(letter.reason for letter in self.dead.values()).most_common())

    @property
    def retried(self) -> dict[int, int]:
        """How many records reached each attempt, from the second attempt on."""
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
    """Return the account of the published keys and of the broker's messages."""
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
    """Return the account in the form that `--json` prints."""
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
