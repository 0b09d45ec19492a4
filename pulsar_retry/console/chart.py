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
