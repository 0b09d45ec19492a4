"""A backlog over time as the points of a line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

#: A time, in seconds of any clock, and the number of letters that waited.
Sample = tuple[float, int]


@attrs.frozen
class Chart:
    """A line to draw.

    Attributes:
        points: The ``points`` of an SVG polyline.
        width: The width of the drawing.
        height: The height of the drawing.
        least: The lowest number of letters.
        most: The highest number of letters.
        seconds: The time that it covers.
    """

    points: str
    width: int
    height: int
    least: int
    most: int
    seconds: float


def chart(samples: Sequence[Sample], width: int, height: int) -> Chart | None:
    """Return the line through *samples*, the oldest first; None if there are fewer than two.

    The bottom stands for 0 letters and the top for the highest number, so that the line shows the
    size of the backlog, not only its changes. A value holds until the next sample.
    """
    if len(samples) < 2:  # noqa: PLR2004 - two ends
        return None
    start, seconds = samples[0][0], samples[-1][0] - samples[0][0]
    depths = [depth for _, depth in samples]
    top = max(depths) or 1
    points: list[str] = []
    before: float | None = None
    for when, depth in samples:
        x = (when - start) / seconds * width if seconds else 0.0
        y = (1 - depth / top) * (height - 2) + 1
        if before is not None and before != y:
            points.append(f"{x:.1f},{before:.1f}")
        points.append(f"{x:.1f},{y:.1f}")
        before = y
    return Chart(" ".join(points), width, height, min(depths), max(depths), seconds)


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
