"""Estimates how many of many waiting entries are due, from a few of them. It is pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import attrs

#: How many entries are looked at first, and how many more if their delays are mixed.
FIRST, MORE = 100, 300

#: How many entries are looked at in one step of a search.
_WIDTH = 15

#: An estimate is wrong by less than this many standard deviations in 95 % of the cases.
_NORMAL = 1.96

#: The error of the ends of the middle range, in distances of the first entries.
_ENDS = 2


@attrs.frozen
class Estimate:
    """How many entries are due.

    Attributes:
        due: Their number.
        error: In 95 % of the cases, the number is wrong by no more than this; 0 if all delays are
            equal, or if all entries were looked at.
    """

    due: int
    error: int = 0


def estimate_due(
    waiting: int,
    look: Callable[[Sequence[int]], Sequence[bool]],
    *,
    first: int = FIRST,
    more: int = MORE,
    chance: random.Random | None = None,
) -> Estimate:
    """Estimate how many of *waiting* entries, numbered from 1 in the order of publication, are due.

    With equal delays, the due entries come first, and a search finds where they end. With mixed
    delays, there is a range of due entries, then a range with both, then one of entries that are
    not due. The share of the middle range is estimated by a sample.

    Args:
        waiting: The number of entries.
        look: Tells for each of some numbers whether that entry is due.
        first: How many entries to look at to find the ranges; at least 2.
        more: How many entries to look at in the middle range.
        chance: What chooses them.
    """
    numbers = _spread(1, waiting, first)
    is_due = list(look(numbers)) if numbers else []
    if waiting == len(numbers):
        return Estimate(sum(is_due))
    last = max((at for at, due in zip(numbers, is_due, strict=True) if due), default=0)
    late = min((at for at, due in zip(numbers, is_due, strict=True) if not due), default=0)
    if not late:
        return Estimate(waiting)
    if last < late:
        return Estimate(_border(last, late, look))
    # All up to `low` count as due, and all from `high` on as not due.
    low = max((at for at in numbers if at < late), default=0)
    high = min((at for at in numbers if at > last), default=waiting + 1)
    share, error = _sample(low, high, look, more, chance or random.Random())  # noqa: S311 - no secret
    # The ends of the middle range are known only as well as few entries show them.
    return Estimate(low + round(share), math.ceil(error + _ENDS * waiting / (first - 1)))


def _border(low: int, high: int, look: Callable[[Sequence[int]], Sequence[bool]]) -> int:
    """Return the last due entry, where *low* is due (or 0) and *high* is not."""
    while high - low > 1:
        numbers = _spread(low + 1, high - 1, _WIDTH)
        for at, due in zip(numbers, look(numbers), strict=True):
            if not due:
                high = at
                break
            low = at
    return low


def _sample(
    low: int,
    high: int,
    look: Callable[[Sequence[int]], Sequence[bool]],
    most: int,
    chance: random.Random,
) -> tuple[float, float]:
    """Return how many entries between *low* and *high* are due, and the error of this number."""
    size = high - low - 1
    if size <= most:
        return float(sum(look(range(low + 1, high)))), 0.0
    # One of each of equal parts: better than by chance alone, if the share changes with time.
    edges = [low + 1 + size * part // most for part in range(most + 1)]
    is_due = look([chance.randrange(a, b) for a, b in itertools.pairwise(edges)])
    changes = sum(a != b for a, b in itertools.pairwise(is_due))
    deviation = size / most * math.sqrt(changes / 2 * most / (most - 1))
    return size * sum(is_due) / most, _NORMAL * deviation


def _spread(start: int, end: int, most: int) -> list[int]:
    """Return at most *most* numbers from *start* to *end*, both included, evenly spread."""
    if end - start < most:
        return list(range(start, end + 1))
    return [start + (end - start) * step // (most - 1) for step in range(most)]
