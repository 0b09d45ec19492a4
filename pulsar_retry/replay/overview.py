"""The retry and dead-letter topics of a namespace, and whose they are."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Literal

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import AdminNotFoundError
from pulsar_retry.replay.redrive_source import is_users

Kind = Literal["retry", "dead_letter"]

#: Requests under way at a time.
_THREADS = 16
_NAME = re.compile(r"(?P<stem>.+)-(?P<suffix>RETRY|DLQ|retry|dlq)")


@attrs.frozen(kw_only=True)
class LetterTopic:
    """A retry or dead-letter topic.

    Attributes:
        topic: Its full name.
        kind: ``retry`` or ``dead_letter``.
        main_topic: The topic of the subscription that it belongs to; None: not known.
        subscription: That subscription.
        backlog: How many letters wait: of its subscriptions the one with the most. None: it has
            none, and letters are kept only as long as the retention says.
        oldest_age_seconds: How long ago the oldest of them was published.
        rate_in: Letters that arrive per second, over the last minute or so.
        rate_out: Letters that are delivered per second.
        partitions: How many it has; 0: it is not partitioned.
        subscriptions: Its own durable subscriptions.
        consumers: How many consumers they have.
    """

    topic: str
    kind: Kind
    main_topic: str | None
    subscription: str | None
    backlog: int | None
    oldest_age_seconds: float | None
    rate_in: float
    rate_out: float
    partitions: int
    subscriptions: tuple[str, ...]
    consumers: int

    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**attrs.asdict(self), "subscriptions": list(self.subscriptions)}


def kind_of(topic: str) -> Kind | None:
    """Return what a topic is by its name, in any dialect; None: neither."""
    match = _NAME.fullmatch(topic)
    if match is None:
        return None
    return "retry" if match["suffix"].upper() == "RETRY" else "dead_letter"


def candidates(letter_topic: str, topics: Collection[str]) -> Iterator[tuple[str | None, str]]:
    """Yield the topics and subscriptions that a letter topic may belong to, the likeliest first.

    The name does not tell where the topic's ends and the subscription's begins. The longest topic
    that exists is the likeliest; TDMQ's older dialects name the subscription alone.
    """
    match = _NAME.fullmatch(letter_topic)
    if match is None:
        return
    stem = match["stem"]
    for at in range(len(stem) - 1, stem.rindex("/"), -1):
        if stem[at] == "-" and stem[:at] in topics:
            # Where every partition has a DLQ of its own, its name has the partition's.
            rest = re.sub(r"^partition-[0-9]+-", "", stem[at + 1 :])
            if rest:
                yield stem[:at], rest
    yield None, stem[stem.rindex("/") + 1 :]


def letter_topics(
    admin: AdminClient,
    namespace: str,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[LetterTopic]:
    """Return the retry and dead-letter topics of a namespace, those with most letters first.

    Two requests list the namespace; each of these topics, and each topic that one may belong to,
    takes one more, many at a time.

    Args:
        admin: Asks.
        namespace: ``tenant/namespace``.
        progress: Called with the requests that are done, and with all of them.

    Raises:
        AdminError: the API was not reached, or refuses.
    """
    topics = set(admin.namespaces.topics(namespace))
    letters = {each for each in topics if kind_of(each)}
    owners = {each: list(candidates(each, topics)) for each in letters}
    mains = {topic for each in owners.values() for topic, _ in each if topic is not None}
    stats = dict(_ask(admin, sorted(letters | mains), progress))
    subscriptions = {topic: _subscriptions(each) for topic, each in stats.items()}
    found = [
        _letter_topic(each, stats[each], *_owner(owners[each], subscriptions))
        for each in sorted(letters)
        if each in stats
    ]
    return sorted(found, key=lambda each: -(each.backlog or 0))


@attrs.frozen
class _Stats:
    """The statistics of a topic, of every partition."""

    each: list[dict[str, Any]]
    partitioned: bool = False


def _ask(
    admin: AdminClient, topics: list[str], progress: Callable[[int, int], None]
) -> Iterator[tuple[str, _Stats]]:
    """Yield the statistics of each topic that is still there, of every partition."""
    with ThreadPoolExecutor(_THREADS) as pool:
        asked = {pool.submit(_stats, admin, each): each for each in topics}
        for number, future in enumerate(as_completed(asked), 1):
            progress(number, len(topics))
            stats = future.result()
            if stats is not None:
                yield asked[future], stats


def _stats(admin: AdminClient, topic: str) -> _Stats | None:
    with contextlib.suppress(AdminNotFoundError):
        return _Stats([admin.topics.stats(topic)])
    try:
        partitions = admin.topics.partitioned_stats(topic)["partitions"]
        return _Stats(list(partitions.values()), partitioned=True)
    except AdminNotFoundError:
        return None  # deleted meanwhile


def _subscriptions(stats: _Stats) -> dict[str, list[dict[str, Any]]]:
    """Return the statistics of each durable subscription, of every partition."""
    found: dict[str, list[dict[str, Any]]] = {}
    for partition in stats.each:
        for name, each in partition["subscriptions"].items():
            if is_users(name, each):
                found.setdefault(name, []).append(each)
    return found


def _owner(
    possible: list[tuple[str | None, str]], subscriptions: dict[str, dict[str, Any]]
) -> tuple[str | None, str | None]:
    """Return the topic and subscription that are there, else the likeliest."""
    for topic, subscription in possible:
        if topic is not None and subscription in subscriptions.get(topic, {}):
            return topic, subscription
    return possible[0]


def _letter_topic(
    topic: str, found: _Stats, main: str | None, subscription: str | None
) -> LetterTopic:
    kind = kind_of(topic)
    assert kind is not None  # noqa: S101 - only these are asked for
    stats, own = found.each, _subscriptions(found)
    backlogs = {name: sum(each["msgBacklog"] for each in parts) for name, parts in own.items()}
    fullest = max(backlogs, key=backlogs.__getitem__, default=None)
    return LetterTopic(
        topic=topic,
        kind=kind,
        main_topic=main,
        subscription=subscription,
        backlog=None if fullest is None else backlogs[fullest],
        oldest_age_seconds=None if fullest is None else _age(own[fullest]),
        rate_in=round(sum(each["msgRateIn"] for each in stats), 3),
        rate_out=round(sum(each["msgRateOut"] for each in stats), 3),
        partitions=len(stats) if found.partitioned else 0,
        subscriptions=tuple(sorted(own)),
        consumers=sum(len(each["consumers"]) for parts in own.values() for each in parts),
    )


def _age(parts: list[dict[str, Any]]) -> float | None:
    """Return how long ago the oldest message of a backlog was published."""
    times = [each.get("earliestMsgPublishTimeInBacklog", 0) for each in parts]
    known = [each for each in times if each > 0]
    return round(max(0.0, time.time() - min(known) / 1000), 3) if known else None
