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


class Message(Protocol):
    """The part of a `pulsar.Message` that is read."""

    def partition_key(self) -> str: ...
    def data(self) -> bytes: ...
    def properties(self) -> dict[str, str]: ...
    def redelivery_count(self) -> int: ...


@attrs.frozen
class DeadRecord:
    """A dead letter as it was read: the record's key, its payload as text, and all properties."""

    key: str
    payload: str
    properties: dict[str, str]

    @property
    def reason(self) -> str:
        """Why it is dead."""
        return self.properties["FAILURE_REASON"]


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
    def faults(self) -> dict[str, list[str]]:
        """The keys of records that did not end in exactly one place, by what is wrong."""
        processed, dead = self.processed.keys(), self.dead.keys()
        return {
            "missing": sorted(self.published - processed - dead),
            "in_both": sorted(processed & dead),
            "unknown": sorted((processed | dead) - self.published),
        }

    @property
    def is_balanced(self) -> bool:
        """Whether each published record ended in exactly one place, and no other record exists."""
        return not any(self.faults.values())

    @property
    def reasons(self) -> dict[str, int]:
        """How many records are dead for each reason, the most frequent first."""
        return dict(Counter(letter.reason for letter in self.dead.values()).most_common())

    @property
    def retried(self) -> dict[int, int]:
        """How many records reached each attempt, from the second attempt on."""
        dead = [
            RetryProperties.read(each.properties).reconsume_times for each in self.dead.values()
        ]
        made = [*self.processed.values(), *(min(each, self.retries) for each in dead)]
        return {
            attempt: sum(retries + 1 >= attempt for retries in made)
            for attempt in range(2, self.retries + 2)
        }

    def samples(self, count: int) -> list[DeadRecord]:
        """Return a dead letter of each reason, the most frequent reasons first, at most *count*."""
        first: dict[str, DeadRecord] = {}
        for key in sorted(self.dead):
            first.setdefault(self.dead[key].reason, self.dead[key])
        return [first[reason] for reason in self.reasons][:count]

    def as_json(self, samples: int) -> dict[str, Any]:
        """Return the account in the form that `--json` prints."""
        return {
            "ok": self.is_balanced,
            "published": len(self.published),
            "processed": len(self.processed),
            "dead_lettered": len(self.dead),
            "retried": {str(attempt): count for attempt, count in self.retried.items()},
            "reasons": self.reasons,
            "copies": self.copies,
            **self.faults,
            "samples": [attrs.asdict(letter) for letter in self.samples(samples)],
        }


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
    copies = 0
    for result in results:
        key = result.partition_key()
        copies += key in processed
        processed.setdefault(key, int(result.properties()["retries"]))
    for letter in dead_letters:
        key = letter.partition_key()
        copies += key in dead
        payload = letter.data().decode(errors="replace")
        dead.setdefault(key, DeadRecord(key, payload, dict(letter.properties())))
    return Account(frozenset(published), processed, dead, copies, retries)
