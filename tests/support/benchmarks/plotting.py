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
_OURS, _OTHERS = "#2563eb", ("#9ca3af", "#d97706", "#059669")


def drawn(figures: Figures) -> bytes:
    """Return an SVG: a line for each name if there is a parameter, else a bar for each name."""
    rows = len(figures.results) or len(figures.times)
    height = 3.2 if figures.points else 0.9 + _ROW * rows
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        if figures.points:
            _lines(axes, figures)
        else:
            _bars(axes, figures)
        axes.spines[["top", "right"]].set_visible(False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return b"\n".join(lines) + b"\n"


def _lines(axes: Axes, figures: Figures) -> None:
    others = iter(_OTHERS)
    for name in dict.fromkeys(each.name for each in figures.points):
        line = [each for each in figures.points if each.name == name]
        color = _OURS if _is_ours(name) else next(others)
        axes.plot([each.x for each in line], [each.cpu for each in line], "o-", label=name, c=color)
    places = [each.x for each in figures.points]
    if min(places) > 0 and max(places) >= 8 * min(places):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if max(each.cpu for each in figures.points) > 20 * min(each.cpu for each in figures.points):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(figures.axis)
    axes.set_ylabel("processor time a message (µs)")
    axes.legend(frameon=False)


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
    colors = [_OURS if _is_ours(name) else _OTHERS[0] for name, _ in rows]
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
