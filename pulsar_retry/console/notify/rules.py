"""Decides when users are told of a group of failures, or of a dead-letter topic. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

NoticeKind = Literal["new", "returned", "growing"]

#: Seconds within which the same thing is told again only if there is twice as much as ever.
AGAIN = 3600.0
#: The number of a topic as a whole, in place of that of a group.
WHOLE = 0

#: What is told of: the topic, and the number of the group, or `WHOLE`.
Subject = tuple[str, int]


@attrs.frozen
class Told:
    """What is known to users about a group or a topic.

    Attributes:
        level: How many letters waited when they were last told, or fewer that were left since.
        most: The highest number that they were told lately.
        at: When they were last told, in seconds since 1970.
    """

    level: int
    most: int
    at: float


#: What is known of a topic before it is told.
_NOTHING = Told(0, 0, 0.0)


@attrs.frozen(kw_only=True)
class WaitingCount:
    """How many letters wait, of a group or of a topic.

    Attributes:
        topic: The full name of the topic.
        group: The number of the group, or `WHOLE`.
        count: How many letters wait.
        reason: The reason of the group; empty if there is none.
        error: The class of the error; likewise.
        fingerprint: The fingerprint; likewise.
        message: The text of one error; likewise.
        first_seen: When the first letter arrived, in seconds since 1970; None for a topic.
    """

    topic: str
    group: int
    count: int
    reason: str = ""
    error: str = ""
    fingerprint: str = ""
    message: str = ""
    first_seen: float | None = None

    @property
    def subject(self) -> Subject:
        """What this is about."""
        return self.topic, self.group


@attrs.frozen(kw_only=True)
class Notice:
    """Something to tell users.

    Attributes:
        kind: ``new``: never seen before. ``returned``: there were no such letters any more.
            ``growing``: at least twice as many letters as when it was last told.
        waiting: What waits now.
        before: How many letters waited when it was last told.
    """

    kind: NoticeKind
    waiting: WaitingCount
    before: int = 0

    @property
    def is_group(self) -> bool:
        """Whether it is about a group."""
        return self.waiting.group != WHOLE

    @property
    def where(self) -> dict[str, str]:
        """The filter that selects the group; empty for a topic."""
        names = ("reason", "error", "fingerprint")
        return {name: text for name in names if (text := getattr(self.waiting, name))}

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return attrs.asdict(self)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Notice:
        """Read what `facts` has returned."""
        return cls(**{**facts, "waiting": WaitingCount(**facts["waiting"])})


def judged(
    waiting: WaitingCount, told: Told | None, now: float, growth: int
) -> tuple[NoticeKind | None, Told]:
    """Return what users are told of *waiting*, and what they know then.

    Args:
        waiting: What waits now.
        told: What they know; None if they do not know the group.
        now: Seconds since 1970.
        growth: The least growth that is told, in letters.
    """
    is_group, count = waiting.group != WHOLE, waiting.count
    if told is None:
        return "new", Told(count, count, now)
    if count <= told.level:
        return None, attrs.evolve(told, level=count)
    rested = now - told.at >= AGAIN
    kind: NoticeKind | None = None
    if is_group and told.level == 0 and rested:
        kind = "returned"
    elif count >= max(2 * told.level, told.level + growth) and (rested or count >= 2 * told.most):
        kind = "growing"
    if kind is None:
        return None, told
    return kind, Told(count, count if rested else max(count, told.most), now)


def _with_totals(found: Iterable[WaitingCount]) -> list[WaitingCount]:
    """Return the groups, then their topics, which have at least the letters of their groups.

    Groups are counted in the index, which is ahead of the depths of topics.
    """
    groups: list[WaitingCount] = []
    totals: Counter[str] = Counter()
    depths: dict[str, int] = {}
    for each in found:
        if each.group == WHOLE:
            depths[each.topic] = each.count
        else:
            groups.append(each)
            totals[each.topic] += each.count
    topics = [
        WaitingCount(topic=each, group=WHOLE, count=max(depths.get(each, 0), totals[each]))
        for each in dict.fromkeys([*depths, *totals])
    ]
    return [*groups, *topics]


def to_tell(
    found: Iterable[WaitingCount],
    told: Mapping[Subject, Told],
    whole: frozenset[str],
    now: float,
    growth: int,
) -> tuple[list[Notice], dict[Subject, Told]]:
    """Return what users are to be told, and what has changed of what they know.

    Args:
        found: The groups that have letters, and the topics.
        told: What users know.
        whole: The topics of which all letters are counted. In others, there may be more.
        now: Seconds since 1970.
        growth: The least growth that is told, in letters.
    """
    notices: list[Notice] = []
    changed: dict[Subject, Told] = {}
    explained: dict[str, int] = {}
    seen = set()
    # Groups first: a topic that grows by groups that are told need not be told, too.
    for each in _with_totals(found):
        subject = each.subject
        before = told.get(subject, _NOTHING if each.group == WHOLE else None)
        seen.add(subject)
        kind, after = judged(each, before, now, growth)
        if after == before or (kind is None and each.topic not in whole):
            continue
        changed[subject] = after
        level = 0 if before is None else before.level
        if kind is None or (
            each.group == WHOLE and 2 * explained.get(each.topic, 0) >= each.count - level
        ):
            continue
        notices.append(Notice(kind=kind, waiting=each, before=level))
        explained[each.topic] = explained.get(each.topic, 0) + each.count - level
    for subject, before in told.items():
        topic, group = subject
        if subject not in seen and group != WHOLE and topic in whole and before.level:
            changed[subject] = attrs.evolve(before, level=0)
    return notices, changed
