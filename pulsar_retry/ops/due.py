"""How many messages of a subscription are due now: its backlog without the delayed ones."""

from __future__ import annotations

import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import AdminError, AdminNotFoundError
from pulsar_retry.ops.estimating import FIRST, MORE, Estimate, estimate_due
from pulsar_retry.ops.overview import (
    THREADS,
    TopicStats,
    ask_stats,
    owner_of,
    subscriptions_of,
)
from pulsar_retry.wire.names import candidates, kind_of

_log = logging.getLogger("pulsar_retry")

#: The entries that are looked at first in each partition, at least.
_LEAST = 10

#: The topic of a subscription, or its retry topic.
Part = Literal["main", "retry"]

#: Subscriptions of these types deliver messages without their delays.
_WITHOUT_DELAYS = frozenset({"Exclusive", "Failover"})


@attrs.frozen(kw_only=True)
class DueBacklog:
    """What waits for a subscription in its topic, or in its retry topic.

    The numbers are of stored entries, as in the broker's backlog: a batch counts as one. Messages
    that a consumer has received and not acknowledged are part of the backlog, and due.

    Attributes:
        topic: The topic of the subscription; None if it is not known.
        subscription: The subscription.
        part: Whether this is about the topic (``main``) or the retry topic (``retry``).
        backlog: How many entries wait, including those that are not due.
        due: How many of them are due. It is estimated if their delays differ.
        error: In 95 % of the cases, `due` is wrong by no more than this.
    """

    topic: str | None
    subscription: str
    part: Part
    backlog: int
    due: int
    error: int

    @property
    def not_due(self) -> int:
        """How many entries are not due yet."""
        return self.backlog - self.due

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {"kind": "due", **attrs.asdict(self), "not_due": self.not_due}


def due_backlogs(admin: AdminClient, namespace: str) -> list[DueBacklog]:
    """Return what is due for each durable subscription of a namespace. It consumes nothing.

    Two requests list the namespace, and each topic takes one more. The broker is then asked for
    some entries of each backlog: all if there are at most 100, some 20 more if all delays are
    equal, and else 400. Non-persistent topics have no backlog, and dead-letter topics are left out.

    The broker's own numbers are of no use here. It counts delayed messages only after it has read
    them for a consumer, 50,000 at most by default, and goes on counting them as delayed after they
    are due, until they are delivered.

    Args:
        admin: The client of the REST API.
        namespace: ``tenant/namespace``.

    Raises:
        AdminError: the REST API is unreachable, or refuses the list. If only a subscription is
            refused, it is left out, with a warning in the log.
    """
    topics = set(admin.namespaces.topics(namespace))
    asked = sorted(each for each in topics if kind_of(each) != "dead_letter")
    stats = dict(ask_stats(admin, asked))
    own = {topic: subscriptions_of(each) for topic, each in stats.items()}
    found: list[DueBacklog] = []
    with ThreadPoolExecutor(THREADS) as pool:
        asking = _Asking(admin, pool)
        for topic in sorted(own):
            names: list[tuple[str | None, str]] = [(topic, name) for name in own[topic]]
            is_retry = kind_of(topic) is not None
            if is_retry:
                main, name = owner_of(list(candidates(topic, topics)), own)
                names = [(main, name)] if name in own[topic] else []
            for main, subscription in names:
                part: Part = "retry" if is_retry else "main"
                try:
                    numbers = asking.backlog(subscription, stats[topic])
                except AdminError as error:
                    _log.warning(
                        "what is due for %s on %s is not known: %s", subscription, topic, error
                    )
                else:
                    found.append(
                        DueBacklog(topic=main, subscription=subscription, part=part, **numbers)
                    )
    return found


@attrs.frozen
class _Asking:
    """Asks for entries, several at a time."""

    admin: AdminClient
    pool: ThreadPoolExecutor

    def backlog(self, name: str, stats: TopicStats) -> dict[str, int]:
        """Return the numbers of a subscription, over all partitions of a topic."""
        of_name = {
            partition: facts["subscriptions"][name]
            for partition, facts in stats.by_name.items()
            if name in facts["subscriptions"]
        }
        filled = sum(bool(each["msgBacklog"]) for each in of_name.values())
        first = max(_LEAST, FIRST // (filled or 1))
        found = [
            self._partition(partition, name, each, first) for partition, each in of_name.items()
        ]
        return {
            "backlog": sum(backlog for backlog, _ in found),
            "due": sum(each.due for _, each in found),
            # The errors of the partitions are independent.
            "error": math.ceil(math.hypot(*(each.error for _, each in found))),
        }

    def _partition(
        self, partition: str, name: str, stats: dict[str, Any], first: int
    ) -> tuple[int, Estimate]:
        backlog = int(stats["msgBacklog"])
        if stats.get("type") in _WITHOUT_DELAYS:
            return backlog, Estimate(backlog)
        now, gone = datetime.now(UTC), threading.Event()

        def is_due(number: int) -> bool:
            try:
                entry = self.admin.subscriptions.peek(partition, name, number)
            except AdminNotFoundError:  # consumers have acknowledged others meanwhile
                gone.set()
                return False
            return entry.due is None or entry.due <= now

        estimate = estimate_due(
            backlog,
            lambda numbers: list(self.pool.map(is_due, numbers)),
            first=first,
            more=MORE * first // FIRST,
        )
        if gone.is_set():
            backlog = self._backlog_now(partition, name)
        due = min(estimate.due, backlog)
        return backlog, Estimate(due, min(estimate.error, backlog))

    def _backlog_now(self, partition: str, name: str) -> int:
        stats = self.admin.topics.stats(partition)["subscriptions"].get(name)
        return int(stats["msgBacklog"]) if stats else 0
