"""What can be ordered from the console: the verbs of the command line, with their dry runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from pulsar_retry.console.filtering import NAMES, Pairs, Query
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.redrive import Discard, Redrive
from pulsar_retry.replay.redriving.report import STAYS, STOPPED, Redriven
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.seeking.seek import seek
from pulsar_retry.replay.snapshots.snapshot import Snapshot
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import TopicName, kind_of

#: What happens to the letters, for each verb.
DONE: dict[str, str] = {
    "redrive": "redriven",
    "discard": "discarded",
    "seek": "queued again",
}
_TO = ("retry", "origin")
_SNAPSHOT = "snapshot:"
#: How many groups are shown and stored, the largest first.
_MOST_GROUPS = 50


@attrs.frozen(kw_only=True)
class OrderOutcome:
    """The result of an order so far.

    Attributes:
        done: How many letters, of this run.
        left: How many letters stay, with the reason in words.
        targets: How many letters went to each topic.
        stopped: Why it ended early, in words.
        is_cancelled: Whether it was cancelled.
        is_complete: Whether nothing is left that was meant.
        notes: More about the result, in words.
        groups: For a dry run: which letters, as groups; the largest ones.
    """

    done: int = 0
    left: Mapping[str, int] = attrs.field(factory=dict)
    targets: Mapping[str, int] = attrs.field(factory=dict)
    stopped: str = ""
    is_cancelled: bool = False
    is_complete: bool = True
    notes: Sequence[str] = ()
    groups: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, done: Redriven) -> OrderOutcome:
        """Return the outcome of a redrive, or of discarding."""
        return cls(
            done=done.redriven,
            left={STAYS.get(why, why): count for why, count in done.left.items()},
            targets=dict(done.targets),
            stopped=STOPPED.get(done.stopped or "", ""),
            is_cancelled=done.stopped == "cancelled",
            is_complete=done.dry_run or done.is_complete,
            notes=done.problems,
            groups=[each.facts() for each in done.groups[:_MOST_GROUPS]],
        )

    @classmethod
    def of_seek(cls, done: SeekReport) -> OrderOutcome:
        """Return the outcome of a seek."""
        facts = done.facts()
        notes = [
            f"{done.purged} messages are purged",
            f"{done.backlog_after} are to be delivered in all (a batch counts as one)",
            *(f"{count} letters are {name}" for name, count in facts["letters"].items() if count),
            *done.warnings,
        ]
        return cls(done=done.replayed, notes=notes)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return attrs.asdict(self)


Tell = Callable[[OrderOutcome], None]


class OrderWork(Protocol):
    """An order that can be carried out."""

    #: Whether it can be cancelled once it runs.
    can_cancel: bool

    def run(self, tell: Tell) -> OrderOutcome:
        """Carry it out, and return the result. *tell* gets the state so far."""
        ...

    def cancel(self) -> None:
        """Settle the letters in flight, and end."""
        ...


@attrs.frozen(kw_only=True)
class Order:
    """The fields of a form, as they were typed; an empty field is not set.

    Attributes:
        verb: What to do.
        source: The full name of the topic.
        query: Which letters.
        to: For a redrive: ``retry`` or ``origin``. For a seek: where to.
        limit: How many letters at most.
        rate: Messages per second.
        why: The reason, for the audit log.
        dlq_subscription: The subscription of the topic through which letters are taken.
        topic: For a redrive: the topic whose letters are meant, if its DLQ's name does not say it.
        subscription: The same, or for a seek: the subscription that is moved.
        any_topic: Accept a topic that does not have the name of a dead-letter topic.
        everything: All letters, without a filter.
    """

    verb: str = "redrive"
    source: str
    query: Query = attrs.field(factory=Query)
    to: str = ""
    limit: str = ""
    rate: str = ""
    why: str = ""
    dlq_subscription: str = ""
    topic: str = ""
    subscription: str = ""
    any_topic: str = ""
    everything: str = ""

    @classmethod
    def of(cls, pairs: Pairs, source: str) -> Order:
        """Read the fields of a form, or of a URL; other fields are ignored."""
        pairs = list(pairs)
        names = {each.name for each in attrs.fields(cls)} - {"source", "query"}
        plain = {name: text.strip() for name, text in pairs if name in names}
        typed = " ".join(text for name, text in pairs if name == "filter")
        query = Query.typed(typed).with_([each for each in pairs if each[0] in NAMES])
        return cls(source=source, query=query, **plain)

    def settled(self) -> Order:
        """Return the order with times instead of durations: it is confirmed later.

        Raises:
            ConfigError: a field of the filter is invalid.
        """
        where = self.query.where()
        times = {"since": where.since, "until": where.until}
        texts = {name: when.isoformat() for name, when in times.items() if when is not None}
        return attrs.evolve(self, query=self.query.with_(texts))

    def pairs(self) -> list[tuple[str, str]]:
        """Return the fields for a URL or a hidden form."""
        plain = attrs.asdict(self, filter=attrs.filters.exclude("query", "source"), recurse=False)
        return [("name", self.source), *self.query.pairs, *((n, t) for n, t in plain.items() if t)]

    def facts(self) -> dict[str, Any]:
        """Return the order as JSON-compatible values."""
        return {"source": self.source, "pairs": [list(each) for each in self.pairs()]}

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Order:
        """Read what `facts` has returned."""
        pairs = [(name, text) for name, text in facts["pairs"]]
        return cls.of(pairs, facts["source"])

    def given(self) -> dict[str, Any]:
        """Return the arguments for the audit log."""
        plain = (
            "to",
            "limit",
            "rate",
            "dlq_subscription",
            "topic",
            "subscription",
            "everything",
        )
        found = {name: getattr(self, name) for name in plain if getattr(self, name)}
        return found | {name: self.query.values(name) for name, _ in self.query.pairs}

    def command(self) -> str:
        """Return the command that does the same."""
        shown, subscription, to = map(
            shlex.quote, (usual_name(self.source), self.subscription, self.to)
        )
        if self.verb == "seek":
            return f"pulsar-retry seek {shown} {subscription} --to {to}"
        options = self.query.options()
        more = [
            f"--{name.replace('_', '-')} {shlex.quote(text)}"
            for name in ("limit", "rate", "dlq_subscription", *self._owner)
            if (text := getattr(self, name))
        ]
        more += ["--to origin"] if self.verb == "redrive" and self.to == "origin" else []
        more += ["--any-topic"] if self.any_topic else []
        more += ["--all"] if self.everything else []
        return " ".join([f"pulsar-retry {self.verb} {shown}", *filter(None, [options]), *more])

    @property
    def _owner(self) -> tuple[str, ...]:
        """The fields that say whose letters are meant."""
        return ("topic", "subscription") if self.verb == "redrive" else ()

    def work(self, cluster: Cluster, *, dry_run: bool) -> OrderWork:
        """Return the work of this order; nothing is opened.

        Raises:
            ConfigError: a field is invalid.
        """
        if self.verb not in DONE:
            raise ConfigError.bad("verb", self.verb, ", ".join(DONE))
        where = self.query.where()
        if self.verb == "discard" and where.takes_all and not self.everything:
            raise ConfigError("filter: expected a filter, or a tick at “all letters of the topic”")
        if self.verb == "seek":
            return _Seeking(self, cluster, dry_run=dry_run)
        if kind_of(self.source) == "retry":
            raise ConfigError.bad("topic", self.source, "a dead-letter topic")
        options: dict[str, Any] = {
            "cluster": cluster,
            "where": where,
            "limit": _number("limit", self.limit, int),
            "rate": _number("rate", self.rate, float),
            "dlq_subscription": self.dlq_subscription or None,
            "any_topic": bool(self.any_topic),
            "dry_run": dry_run,
        }
        if self.verb == "discard":
            return _Moving(Discard(self.source, **options))
        if self.to not in {"", *_TO}:
            raise ConfigError.bad("to", self.to, " or ".join(_TO))
        owner: dict[str, Any] = {name: getattr(self, name) or None for name in self._owner}
        return _Moving(Redrive(self.source, self.to or "retry", **owner, **options))


def usual_name(topic: str) -> str:
    """Return the name of a topic as commands accept it: short in ``public/default``."""
    name = TopicName.parse(topic)
    return name.local if (name.tenant, name.namespace) == ("public", "default") else topic


def _number(name: str, text: str, kind: Callable[[str], float]) -> Any:
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise ConfigError.bad(name, text, "a number") from None


class _Moving:
    """Letters that are redriven or discarded."""

    can_cancel = True

    def __init__(self, redrive: Redrive) -> None:
        self._redrive = redrive
        self.cancel = redrive.cancel

    def run(self, tell: Tell) -> OrderOutcome:
        return OrderOutcome.of(self._redrive.run(lambda so_far: tell(OrderOutcome.of(so_far))))


class _Seeking:
    """A subscription is moved."""

    can_cancel = False

    def __init__(self, order: Order, cluster: Cluster, *, dry_run: bool) -> None:
        self._target = Subscription(cluster, order.source, order.subscription)
        self._to, self._dry_run = order.to, dry_run
        if not order.to:
            raise ConfigError("to: expected a place, such as 2h, latest or snapshot:NAME")

    def cancel(self) -> None:
        """Do nothing: this work cannot be cancelled."""

    def run(self, tell: Tell) -> OrderOutcome:  # noqa: ARG002 - a seek does not say how far it is
        where: Any = self._to
        if where.startswith(_SNAPSHOT):
            name = where.removeprefix(_SNAPSHOT)
            where = Snapshot.get(self._target.cluster, self._target.topic, name)
        grace = seconds_of_text("grace", "10s")
        return OrderOutcome.of_seek(seek(self._target, where, dry_run=self._dry_run, grace=grace))
