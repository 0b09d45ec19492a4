"""The results of benchmarks as plots for docs/performance.md. Equal figures give equal bytes."""

from __future__ import annotations

import io

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.benchmarks.figures import Figures

#: Text stays text, and ids are not random. So files are small, and differ only if figures do.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "pulsar-retry", "font.size": 9}
_WIDTH, _ROW = 7.0, 0.36  # inches
_OURS, _OTHERS = "#2563eb", "#9ca3af"


def drawn(figures: Figures) -> bytes:
    """Return an SVG with a bar for each name."""
    rows = len(figures.results) or len(figures.times)
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.9 + _ROW * rows), layout="constrained")
        axes = figure.add_subplot()
        _bars(axes, figures)
        axes.spines[["top", "right"]].set_visible(False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return b"\n".join(lines) + b"\n"


def _bars(axes: Axes, figures: Figures) -> None:
    rows = [(each.name, each.rates) for each in figures.results]
    axes.set_xlabel("messages per second: median, slowest and fastest round")
    if not rows:
        rows = [
            (each.name, tuple(1000 * value for value in each.seconds)) for each in figures.times
        ]
        axes.set_xlabel("milliseconds: median, shortest and longest")
    middle, least, most = zip(*(values for _, values in rows), strict=True)
    spread = [
        [value - low for value, low in zip(middle, least, strict=True)],
        [high - value for value, high in zip(middle, most, strict=True)],
    ]
    colors = [_OURS if _is_ours(name) else _OTHERS for name, _ in rows]
    axes.barh(
        [name for name, _ in rows], middle, xerr=spread, color=colors, ecolor="#4b5563", capsize=2
    )
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _is_ours(name: str) -> bool:
    """Return whether a contestant is this package."""
    ours = ("pr.", "pulsar_retry", "pulsar-failures", "write_failures", "enable_retry")
    names = ("subscriber", "dispatcher", "reconsume_later_async", "dead_letter_async", "Redrive")
    return any(each in name for each in (*ours, *names))
