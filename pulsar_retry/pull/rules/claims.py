"""The claims of all processes of a subscription, as their topic says them. Pure.

Each process has one record in the topic: what it has in hand. The record of a process that has died
stays, and accuses the messages in it, until each of them was handled. `tests/model/Claims.tla` is
the model of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from pulsar_retry.policy.checks import keywords_only, not_blank, positive
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.wire.names import TopicName, first_topic

#: The end of the default name of a subscription's topic of claims.
_SUFFIX = "CLAIMS"

#: The default of `TopicClaims.keep`: a week.
_WEEK = 7 * 24 * 3600.0


def _topic(value: str | None) -> str | None:
    return None if value is None else not_blank("topic", value, "a name that is not blank, or None")


def _grace(value: Duration) -> float:
    return seconds("grace", value)


def _wait(value: Duration) -> float:
    return seconds("wait", value)


def _keep(value: Duration) -> float:
    return positive("keep", value)


@keywords_only
@attrs.frozen(kw_only=True)
class TopicClaims:
    """Claims in a topic beside the subscription, for all of its processes on all machines.

    The subscriber opens the topic, which needs the permissions to produce and to consume there, and
    no REST API. A handler begins when its claim is stored and the claims of all others are known.
    Claims are made ahead, for many messages at a time.

    Attributes:
        topic: The topic, which must not have more than one partition. None:
            ``<topic>-<subscription>-CLAIMS``, beside the topics of the letters.
        grace: Seconds, or a timedelta, that a process without a connection has to connect again,
            before a message is dead-lettered because that process has died.
        wait: Seconds, or a timedelta, that handlers wait for their claims while these cannot be
            stored. After that they begin without claims, and their crashes are not counted.
        keep: Seconds, or a timedelta, for which the claims of a dead process are kept if their
            messages do not come again.
    """

    topic: str | None = attrs.field(default=None, converter=_topic)
    grace: float = attrs.field(default=30.0, converter=_grace)
    wait: float = attrs.field(default=10.0, converter=_wait)
    keep: float = attrs.field(default=_WEEK, converter=_keep)

    def name_for(self, topics: str | Iterable[str], subscription: str) -> str:
        """Return the full name of the topic of the claims."""
        if self.topic is not None:
            return str(TopicName.parse(self.topic))
        first = topics if isinstance(topics, str) else first_topic(list(topics))
        return f"{TopicName.parse(first)}-{subscription}-{_SUFFIX}"


@attrs.frozen(slots=False)
class Record:
    """What a process had in hand when it wrote its record.

    Attributes:
        process: The name of the process, which no other process has, also after a restart.
        data: The record, as it is stored.
    """

    process: str
    data: bytes = attrs.field(repr=False)

    @classmethod
    def of(
        cls,
        process: str,
        hand: Iterable[str],
        *,
        at: float,
        host: str,
        pid: int,
        alone: str | None = None,
        turn: int = 0,
    ) -> Record:
        """Make a record.

        Args:
            process: The name of the process.
            hand: The messages that are handled, or will be soon.
            at: When it was made, in seconds since 1970, by the clock of the process.
            host: The host of the process, for humans.
            pid: The id of the process on its host.
            alone: The suspect that is handled alone.
            turn: The number of the turn to handle a suspect that the process asks for, or has; 0:
                none.
        """
        head: dict[str, object] = {"at": at, "host": host, "pid": pid, "turn": turn}
        if alone is not None:
            head["alone"] = alone
        lines = [json.dumps(head), *hand]
        return cls(process, "\n".join(lines).encode("utf-8", "surrogatepass"))

    @cached_property
    def _head(self) -> Mapping[str, object]:
        try:
            head = json.loads(self.data.split(b"\n", 1)[0])
        except ValueError:
            return {}
        return head if isinstance(head, dict) else {}

    @cached_property
    def accused(self) -> frozenset[str]:
        """The messages that may be the cause if the process has died with this record."""
        if isinstance(self.alone, str):
            return frozenset({self.alone})
        _, *hand = self.data.decode("utf-8", "surrogatepass").split("\n")
        return frozenset(hand)

    @property
    def alone(self) -> str | None:
        """The suspect that the process handled alone."""
        alone = self._head.get("alone")
        return alone if isinstance(alone, str) else None

    @property
    def turn(self) -> int:
        """The number of the turn to handle a suspect that the process asked for, or had."""
        turn = self._head.get("turn")
        return turn if isinstance(turn, int) else 0

    @property
    def at(self) -> float:
        """When the record was made, in seconds since 1970, by the clock of its process."""
        at = self._head.get("at")
        return float(at) if isinstance(at, int | float) else 0.0

    def evidence(self, message: str) -> dict[str, object]:
        """Return what a dead letter says about this crash."""
        return {
            "process": self.process,
            "host": self._head.get("host"),
            "pid": self._head.get("pid"),
            "at": self.at,
            "alone": self.alone == message,
        }

    def without(self, settled: Iterable[str]) -> Record:
        """Return the same record, without some of the messages."""
        head, *hand = self.data.decode("utf-8", "surrogatepass").split("\n")
        lines = [head, *(each for each in hand if each not in set(settled))]
        return Record(self.process, "\n".join(lines).encode("utf-8", "surrogatepass"))


class ClaimBook:
    """The records of all processes, in the order of the topic. Not thread-safe.

    Attributes:
        records: By process, the one whose record is the oldest in the topic first.
    """

    def __init__(self, me: str) -> None:
        """Make an empty book; *me* is the process that reads it."""
        self._me = me
        self.records: dict[str, Record] = {}
        self._settled: dict[str, set[str]] = {}

    @staticmethod
    def mark(process: str, message: str) -> str:
        """Return the key that says that the claim of a dead process is settled."""
        return f"{process} {message}"

    def apply(self, key: str, data: bytes) -> None:
        """Read the next message of the topic."""
        process, is_mark, message = key.partition(" ")
        if is_mark:
            if process in self.records:
                self._settled.setdefault(process, set()).add(message)
                self._drop_if_settled(process)
            return
        self.records.pop(process, None)  # the order is that of the latest record
        if data:
            self.records[process] = Record(process, data)
            self._drop_if_settled(process)
        else:
            self._settled.pop(process, None)

    def accusers(self, messages: Iterable[str]) -> dict[str, list[Record]]:
        """Return the records of other processes that accuse any of *messages*, by message."""
        wanted = frozenset(messages)
        found: dict[str, list[Record]] = {}
        for process, record in self.records.items():
            if process == self._me or wanted.isdisjoint(record.accused):
                continue
            for message in wanted & record.accused - self._settled.get(process, set()):
                found.setdefault(message, []).append(record)
        return found

    def turns(self) -> set[tuple[str, int]]:
        """Return the turns to handle a suspect that other processes ask for, or have.

        A turn has a number, because a process may ask again before others have seen that its last
        turn is over.
        """
        others = ((name, each) for name, each in self.records.items() if name != self._me)
        return {(name, each.turn) for name, each in others if each.turn}

    def rest_of(self, process: str) -> Record:
        """Return the record of *process* without what is settled of it."""
        return self.records[process].without(self._settled.get(process, set()))

    def _drop_if_settled(self, process: str) -> None:
        """Forget a record of which nothing is left; only those of the dead have such marks."""
        if (settled := self._settled.get(process)) and self.records[process].accused <= settled:
            del self.records[process], self._settled[process]
