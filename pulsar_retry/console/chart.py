"""Numbers over time as bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class ChartBar:
    """One bar, in a drawing whose height is 100.

    Attributes:
        x: Its left edge.
        y: Its top.
        width: Its width.
        height: Its height.
        count: The number that it stands for.
    """

    x: float
    y: float
    width: float
    height: float
    count: int


@attrs.frozen
class Bars:
    """Numbers over time as bars.

    Attributes:
        bars: The bars, the oldest first.
        width: The width of the drawing.
        top: The number that the full height stands for.
        total: The sum of the numbers.
    """

    bars: tuple[ChartBar, ...]
    width: int
    top: int
    total: int


def bars(counts: Sequence[int], width: int) -> Bars:
    """Return bars for *counts*.

    Args:
        counts: The numbers, the oldest first.
        width: The width of the drawing; its height is 100.
    """
    top, step = max(counts, default=0), width / max(1, len(counts))
    drawn = []
    for number, count in enumerate(counts):
        # A single letter is visible beside thousands.
        height = max(2.0, count / top * 100) if count else 0.0
        drawn.append(ChartBar(number * step, 100 - height, max(1.0, step - 2), height, count))
    return Bars(tuple(drawn), width, top, sum(counts))
