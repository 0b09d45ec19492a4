"""The retry and dead-letter topics of a namespace, and their owners."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import NotShownError
from pulsar_retry.errors import AdminError, AdminForbiddenError, AdminNotFoundError
from pulsar_retry.replay.redriving.source import (
    AUDIT_TOPIC,
    SUBSCRIPTION,
    is_users,
    usual_subscription,
)
from pulsar_retry.wire.names import Kind, kind_of, old_subscription, splits
from pulsar_retry.wire.owner import Owner, owner_by_name, retry_beside

_log = logging.getLogger("pulsar_retry")

#: How many requests run at a time, and how many topics of other names are asked for at most.
_THREADS, _MOST_ASKED = 16, 1000
#: How many letters have to say that a topic of another name is one of letters, if it has so many.
_FEW = 3
#: After each look, wait at least this many times as long as it took.
_PAUSE_RATIO = 5


@attrs.frozen(kw_only=True)
class LetterTopic:
    """A retry or dead-letter topic.

    Attributes:
        topic: Its full name.
        kind: ``retry`` or ``dead_letter``.
        main_topic: The topic of the subscription that it belongs to; None if it is not known.
        subscription: That subscription; None if several fit.
        backlog: How many letters wait for its subscription `pulsar-retry`, which redrives use, or
            else for its only subscription, or the one with most letters. Without a subscription it
            is the number of stored entries: they stay as long as the retention says, or until the
            broker closes the current ledger.
        oldest_age_seconds: The seconds since the oldest of them was published; None if no letter
            waits.
        rate_in: Letters that arrive per second, averaged over about a minute.
        rate_out: Letters that are delivered per second.
        partitions: How many partitions it has; 0 if it is not partitioned.
        subscriptions: Its durable subscriptions.
        consumers: How many consumers they have.
        delayed: How many letters the broker holds back until they are due, as far as it has read
            them for connected consumers.
    """

    topic: str
    kind: Kind
    main_topic: str | None
    subscription: str | None
    backlog: int
    oldest_age_seconds: float | None
    rate_in: float
    rate_out: float
    partitions: int
    subscriptions: tuple[str, ...]
    consumers: int
    delayed: int = 0

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {**attrs.asdict(self), "subscriptions": list(self.subscriptions)}


def pause_after(took: float, every: float) -> float:
    """Return how long to wait between two looks, so that a slow broker is not kept busy.

    Args:
        took: The seconds that the last look took.
        every: The seconds to wait if it took little.
    """
    return max(every, _PAUSE_RATIO * took)


def letter_topics(
    admin: AdminClient,
    namespace: str,
    *,
    by_letters: bool = False,
    also: Collection[str] = (),
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    left_out: Callable[[str], None] = _log.warning,
) -> list[LetterTopic]:
    """Return the retry and dead-letter topics of a namespace, the largest backlog first.

    Two requests list the namespace. Each letter topic, and each topic that one may belong to, takes
    one more request; many run at a time.

    Args:
        admin: The client of the REST API.
        namespace: ``tenant/namespace``.
        by_letters: Also return letter topics with other names: topics with a subscription
            `pulsar-retry`, and those whose first waiting messages all say that they are letters of
            another topic. This takes up to four requests for each topic of the namespace; if it has
            more than a thousand, none is looked for.
        also: Topics that are asked for in this way in any case.
        progress: Called with the number of topics that have been asked for, and of all.
        left_out: Called, in words, with what is left out: a letter topic that this role may not
            read, a topic of another name whose statistics are refused, or all of those.

    Raises:
        AdminError: the REST API is unreachable, or refuses to list the namespace or a letter topic.
    """
    topics = set(admin.namespaces.topics(namespace))
    letters = {each for each in topics if kind_of(each)}
    mains = {topic for each in letters for topic, _ in splits(each)} & topics
    others = topics - letters if by_letters else topics.intersection(also) - letters
    if len(others) > _MOST_ASKED:
        many = f"{namespace} has {len(others):,} other topics"
        left_out(f"letter topics with names of their own are left out: {many}")
        others &= set(also)
    stats: dict[str, _TopicStats] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        asked = {
            pool.submit(_stats, admin, each, letter=each in letters, other=each in others): each
            for each in sorted(letters | mains | others)
        }
        for number, future in enumerate(as_completed(asked), 1):
            progress(number, len(asked))
            topic = asked[future]
            try:
                stats |= {} if (answer := future.result()) is None else {topic: answer}
            except AdminForbiddenError as error:
                if topic in letters:
                    left_out(f"{topic} is left out: {error}")
            except AdminError as error:
                if topic not in others or error.status is None:
                    raise
                left_out(f"{topic} is left out: {error}")  # it may be broken
    found = []
    for topic, each in stats.items():
        owner = _owner_of(topic, stats) if topic in letters else each.named
        if owner is not None:
            found.append(_letter_topic(topic, each, owner))
    return sorted(found, key=lambda each: (-each.backlog, each.topic))


@attrs.frozen
class _Waiting:
    """How many letters wait, and for how long."""

    count: int
    oldest_age: float | None


@attrs.frozen
class _TopicStats:
    """The statistics of a topic.

    Attributes:
        by_name: Those of each partition, by its name.
        subscriptions: Those of each durable subscription, for every partition.
        partitioned: Whether it is partitioned.
        stored: What is stored in a letter topic without a subscription.
        named: Whose the letters of a topic with another name are, as far as the first of them says
            it; None if there are none, or if they were not asked for.
    """

    by_name: dict[str, dict[str, Any]]
    subscriptions: dict[str, list[dict[str, Any]]]
    partitioned: bool
    stored: _Waiting | None
    named: Owner | None


def _stats(admin: AdminClient, topic: str, *, letter: bool, other: bool) -> _TopicStats | None:
    """Return the statistics of a topic; None if it was deleted meanwhile.

    Args:
        admin: The client of the REST API.
        topic: The full name of the topic.
        letter: Whether it has the name of a letter topic.
        other: Whether its letters are asked for whose they are.
    """
    try:
        by_name, partitioned = {topic: admin.topics.stats(topic)}, False
    except AdminNotFoundError:
        try:
            by_name, partitioned = admin.topics.partitioned_stats(topic)["partitions"], True
        except AdminNotFoundError:
            return None
    found: dict[str, list[dict[str, Any]]] = {}
    for partition in by_name.values():
        for name, each in partition["subscriptions"].items():
            if is_users(name, each):
                found.setdefault(name, []).append(each)
    stored = _stored(admin, by_name) if letter and not found else None
    named = _named(admin, topic, by_name, found) if other and found else None
    return _TopicStats(by_name, found, partitioned, stored, named)


def _owner_of(letter_topic: str, stats: Mapping[str, _TopicStats]) -> Owner:
    """Return the owner of a letter topic, as far as its name and what exists tell it."""

    def exists(topic: str, subscription: str) -> bool:
        return topic in stats and subscription in stats[topic].subscriptions

    owner = owner_by_name(letter_topic, exists)
    if owner is not None:
        return owner
    there = [Owner(*pair) for pair in splits(letter_topic) if pair[0] in stats]
    if not there:
        # Spark's sink makes no main topic, and the subscription on the retry topic.
        retry = retry_beside(letter_topic) or letter_topic
        named = [each for _, each in splits(letter_topic) if exists(retry, each)]
        return Owner(subscription=named[0] if len(named) == 1 else old_subscription(letter_topic))
    return there[0] if len(there) == 1 else Owner()  # its subscription may have been deleted


def _named(
    admin: AdminClient,
    topic: str,
    by_name: Mapping[str, dict[str, Any]],
    own: dict[str, list[dict[str, Any]]],
) -> Owner | None:
    """Return whose the letters of a topic are, as its first ones say; None if there are none.

    Applications copy properties of letters to other messages, so several have to say it.
    """
    if topic.endswith(f"/{AUDIT_TOPIC}"):
        return None
    through, said = _read_through(own), list[Owner]()
    for name, each in by_name.items():
        waiting = each["subscriptions"].get(through, {}).get("msgBacklog", 0)
        for number in range(1, min(waiting, _FEW - len(said)) + 1):
            try:
                entry = admin.subscriptions.peek(name, through, number)
            except AdminError as error:
                if error.status is None:
                    raise
                break  # it has just been acknowledged, or this role may not read it
            said.append(Owner.named_by(entry.properties))
            if said[-1].topic in {None, topic} and through != SUBSCRIPTION:
                return None
    return said[0] if said else Owner() if through == SUBSCRIPTION else None


def _stored(admin: AdminClient, names: Iterable[str]) -> _Waiting:
    """Return what is stored in the partitions of a topic without subscriptions."""
    count, published = 0, []
    for name in names:
        with contextlib.suppress(AdminNotFoundError):  # it was deleted meanwhile
            facts = admin.topics.internal_stats(name)
            if not facts["numberOfEntries"]:
                continue
            count += facts["numberOfEntries"]
            *closed, current = (each["ledgerId"] for each in facts["ledgers"])
            filled = {each["ledgerId"] for each in facts["ledgers"] if each["entries"]}
            first = next((each for each in closed if each in filled), current)
            with contextlib.suppress(NotShownError):
                when = admin.subscriptions.entry(name, Position(first, 0)).published
                published += [] if when is None else [when.timestamp()]
    return _Waiting(count, _age(published))


def _letter_topic(topic: str, found: _TopicStats, owner: Owner) -> LetterTopic:
    stats, own = found.by_name.values(), found.subscriptions
    waiting = found.stored or _waiting(own[_read_through(own)])
    return LetterTopic(
        topic=topic,
        kind=kind_of(topic) or ("retry" if owner.retry == topic else "dead_letter"),
        main_topic=owner.topic,
        subscription=owner.subscription,
        backlog=waiting.count,
        oldest_age_seconds=waiting.oldest_age,
        rate_in=round(sum(each["msgRateIn"] for each in stats), 3),
        rate_out=round(sum(each["msgRateOut"] for each in stats), 3),
        partitions=len(stats) if found.partitioned else 0,
        subscriptions=tuple(sorted(own)),
        consumers=sum(len(each["consumers"]) for parts in own.values() for each in parts),
        delayed=max(
            (sum(int(each.get("msgDelayed", 0)) for each in parts) for parts in own.values()),
            default=0,
        ),
    )


def _read_through(own: dict[str, list[dict[str, Any]]]) -> str:
    """Return the usual subscription, or else the one with the most letters."""
    waiting = {name: sum(each["msgBacklog"] for each in parts) for name, parts in own.items()}
    return usual_subscription(list(own)) or max(waiting, key=waiting.__getitem__)


def _waiting(parts: Sequence[dict[str, Any]]) -> _Waiting:
    """Return what waits for a subscription."""
    times = [each.get("earliestMsgPublishTimeInBacklog", 0) / 1000 for each in parts]
    count = sum(each["msgBacklog"] for each in parts)
    return _Waiting(count, _age([each for each in times if each > 0]))


def _age(published: Sequence[float]) -> float | None:
    """Return the age of the oldest of some messages, in seconds."""
    return round(max(0.0, time.time() - min(published)), 3) if published else None
