"""The form of a job: a verb of the command line with its options."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import attrs

from pulsar_retry.console.filtering import NAMES, Pairs, Query
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.targets import DISCARD
from pulsar_retry.wire.dead_letter import RETRY
from pulsar_retry.wire.names import TopicName

#: What happens to the letters, for each verb.
DONE: dict[str, str] = {"redrive": "redriven", "discard": "discarded"}
#: For how many seconds a job watches what becomes of letters after the last one was published.
_WATCHES = 600.0
#: The value of `JobForm.to` that stands for `JobForm.target`.
_TOPIC = "topic"


@attrs.frozen(kw_only=True)
class JobForm:
    """The fields of a form, as they were typed; an empty field is not set.

    Attributes:
        verb: What to do.
        source: The full name of the topic.
        query: Which letters.
        to: For a redrive: ``retry``, ``origin``, or ``topic`` for *target*.
        target: For a redrive: the topic to move the letters to.
        limit: How many letters at most.
        rate: Messages per second.
        why: The reason, for the audit log.
        dlq_subscription: The subscription of the topic through which letters are taken.
        topic: For a redrive: the topic whose letters are meant, if its DLQ's name does not say it.
        subscription: The same.
        any_topic: Accept a topic that does not have the name of a dead-letter topic.
        everything: All letters, without a filter.
    """

    verb: str = "redrive"
    source: str
    query: Query = attrs.field(factory=Query)
    to: str = ""
    target: str = ""
    limit: str = ""
    rate: str = ""
    why: str = ""
    dlq_subscription: str = ""
    topic: str = ""
    subscription: str = ""
    any_topic: str = ""
    everything: str = ""

    @classmethod
    def of(cls, pairs: Pairs, source: str) -> JobForm:
        """Read the fields of a form, or of a URL; other fields are ignored."""
        pairs = list(pairs)
        names = {each.name for each in attrs.fields(cls)} - {"source", "query"}
        plain = {name: text.strip() for name, text in pairs if name in names}
        typed = " ".join(text for name, text in pairs if name == "filter")
        query = Query.typed(typed).with_([each for each in pairs if each[0] in NAMES])
        return cls(source=source, query=query, **plain)

    def settled(self) -> JobForm:
        """Return the form with times instead of durations: it is confirmed later.

        Raises:
            ConfigError: a field of the filter is invalid.
        """
        where = self.query.where()
        times = {"since": where.since, "until": where.until}
        texts = {name: when.isoformat() for name, when in times.items() if when is not None}
        return attrs.evolve(self, query=self.query.with_(texts))

    @property
    def destination(self) -> str:
        """Where the letters of a redrive go, as the command's option ``--to`` says it."""
        return self.target if self.to == _TOPIC else self.to or RETRY

    def pairs(self) -> list[tuple[str, str]]:
        """Return the fields for a URL or a hidden form."""
        plain = attrs.asdict(self, filter=attrs.filters.exclude("query", "source"), recurse=False)
        return [("name", self.source), *self.query.pairs, *((n, t) for n, t in plain.items() if t)]

    def given(self) -> dict[str, Any]:
        """Return the arguments for the audit log; `of` reads them."""
        left_out = ("query", "source", "verb", "why")
        plain = attrs.asdict(self, filter=attrs.filters.exclude(*left_out), recurse=False)
        found = {name: text for name, text in plain.items() if text}
        return found | {name: self.query.values(name) for name, _ in self.query.pairs}

    def command(self) -> str:
        """Return the command that does the same."""
        names = ["limit", "rate", "dlq_subscription", *self._owner]
        options = [
            f"--{name.replace('_', '-')} {shlex.quote(text)}"
            for name in names
            if (text := getattr(self, name))
        ]
        if self.verb == "redrive" and self.destination != RETRY:
            options.append(f"--to {shlex.quote(self.destination)}")
        options += ["--any-topic"] if self.any_topic else []
        options += ["--all"] if self.everything else []
        shown = shlex.quote(usual_name(self.source))
        chosen = filter(None, [self.query.options()])
        return " ".join([f"pulsar-retry {self.verb} {shown}", *chosen, *options])

    @property
    def _owner(self) -> tuple[str, ...]:
        """The fields that say whose letters are meant."""
        return ("topic", "subscription") if self.verb == "redrive" else ()

    def work(self, cluster: Cluster, by: str, *, dry_run: bool) -> Redrive:
        """Return the work; nothing is opened.

        Args:
            cluster: The cluster.
            by: Who does it.
            dry_run: Only report.

        Raises:
            ConfigError: a field is invalid.
        """
        if self.verb not in DONE:
            raise ConfigError.bad("verb", self.verb, ", ".join(DONE))
        where = self.query.where()
        options: dict[str, Any] = {
            "cluster": cluster,
            "where": where,
            "limit": _number("limit", self.limit, int),
            "rate": _number("rate", self.rate, float),
            "dlq_subscription": self.dlq_subscription or None,
            "any_topic": bool(self.any_topic),
            "dry_run": dry_run,
            "by": by,
        }
        if self.verb == "discard":
            if where.takes_all and not self.everything:
                text = "filter: expected a filter, or a tick at “all letters of the topic”"
                raise ConfigError(text)
            return Redrive(self.source, DISCARD, **options)
        if self.to not in {"", "retry", "origin", _TOPIC}:
            raise ConfigError.bad("to", self.to, "retry, origin or topic")
        if not self.destination:
            raise ConfigError("target: expected the name of a topic")
        owner: dict[str, Any] = {name: getattr(self, name) or None for name in self._owner}
        return Redrive(self.source, self.destination, wait=_WATCHES, **owner, **options)


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
