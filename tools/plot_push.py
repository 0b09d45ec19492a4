"""Write the plots of docs/push.md: the window, the rate and the backoff, in virtual time.

`python tools/plot_push.py` writes `docs/push-window.svg` and `docs/push-backoff.svg`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from pulsar_retry.push.pacing import Pacer, PushBackoff, Ticket, Window

DOCS = Path(__file__).parents[1] / "docs"

#: Published messages per second, and how many seconds each kind of answer takes.
PUBLISHED, QUICK, SLOW, REFUSED = 2000, 0.05, 3.0, 0.005
#: The states of the endpoint, each with the second in which it begins.
PHASES = ((0.0, "quick"), (8.0, "slow"), (28.0, "quick"), (40.0, "down"), (70.0, "quick"))
END, STEP = 100.0, 0.25

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 206, 60, 44, 26
INK, LINE, SHADE = "#444", "#1f77b4", "#f2e3d5"

Point = tuple[float, float]


@attrs.define
class Simulation:
    """An endpoint and its dispatcher.

    Attributes:
        window: The window over time.
        rate: Requests per second over time.
    """

    window: list[Point] = attrs.Factory(list)
    rate: list[Point] = attrs.Factory(list)
    _now: float = 0.0
    _sent: int = 0

    def run(self) -> Simulation:
        """Run the simulation to its end."""
        pacer = Pacer(Window(), clock=lambda: self._now)
        answers: list[tuple[float, int, bool, Ticket]] = []
        number, next_step, waiting, since = 0, 0.0, 0.0, 0
        while self._now < END:
            while waiting >= 1 and pacer.may_begin():
                waiting -= 1
                number, since = number + 1, since + 1
                phase = phase_at(self._now)
                takes = {"quick": QUICK, "slow": SLOW, "down": REFUSED}[phase]
                ticket = pacer.begin()
                heapq.heappush(answers, (self._now + takes, number, phase != "down", ticket))
            if self._now >= next_step:
                self.window.append((self._now, pacer.pace().window))
                self.rate.append((self._now, since / STEP))
                next_step, since = next_step + STEP, 0
            before = self._now
            due = min(next_step, before + 0.005, answers[0][0] if answers else math.inf)
            self._now = max(due, before + 1e-6)
            waiting = min(waiting + PUBLISHED * (self._now - before), 1e6)
            while answers and answers[0][0] <= self._now:
                _, _, is_ack, ticket = heapq.heappop(answers)
                pacer.leave(ticket, acked=is_ack)
                waiting += not is_ack
        return self


def phase_at(now: float) -> str:
    """Return the endpoint's state at a time."""
    return [name for since, name in PHASES if since <= now][-1]


def spacing(share: float) -> float:
    """Return the mean seconds between sends if *share* of them fail."""
    chance, backoff, total, count = random.Random(1), PushBackoff(), 0.0, 20_000
    for _ in range(count):
        total += backoff.delay
        if chance.random() < share:
            backoff.failed()
        else:
            backoff.succeeded()
    return total / count


# -- drawing --------------------------------------------------------------------------------------


@attrs.frozen
class Panel:
    """One diagram with a logarithmic axis of values."""

    title: str
    unit: str
    ticks: Sequence[float]
    top: float
    low: float
    high: float
    last: float

    def x(self, value: float) -> float:
        """Return the x coordinate of a time."""
        return LEFT + (WIDTH - LEFT - 20) * value / self.last

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.top + (HEIGHT - TOP - BOTTOM) * (1 - part) + TOP

    def frame(self, times: Sequence[float], label: Callable[[float], str]) -> Iterator[str]:
        """Yield the title and the axes."""
        yield text(LEFT, self.top + 16, self.title, "start", 13)
        for value in self.ticks:
            height = self.y(value)
            yield f'<path d="M{LEFT} {height:.1f}H{WIDTH - 20}" stroke="#ddd"/>'
            yield text(LEFT - 6, height + 4, f"{value:g}{self.unit}", "end")
        for value in times:
            yield text(self.x(value), self.top + HEIGHT - 6, label(value), "middle")

    def curve(self, points: Sequence[Point]) -> str:
        """Return an SVG line through *points*."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'


def text(x: float, y: float, words: str, anchor: str, size: int = 11) -> str:
    """Return an SVG text."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="{INK}">{words}</text>'


def svg(height: float, parts: Sequence[str]) -> str:
    """Return an SVG picture."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}"'
    style = 'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f"{head} {style}", *parts, "</svg>", ""])


def window_plot() -> str:
    """Return the plot of the window and the rate."""
    simulation = Simulation().run()
    parts = []
    ends = [*(since for since, _ in PHASES[1:]), END]
    panels = [
        Panel(f"Window: requests that may be outstanding, {_BY}", "", _WINDOWS, 0, 1, 4000, END),
        Panel(f"Requests per second, {_BY}", "", _RATES, HEIGHT, 0.1, 50_000, END),
    ]
    for panel, points in zip(panels, (simulation.window, simulation.rate), strict=True):
        for (since, name), until in zip(PHASES, ends, strict=True):
            x, width = panel.x(since), panel.x(until) - panel.x(since)
            if name != "quick":
                box = f'x="{x:.1f}" y="{panel.top + TOP:g}" width="{width:.1f}"'
                parts.append(f'<rect {box} height="{HEIGHT - TOP - BOTTOM}" fill="{SHADE}"/>')
            parts.append(text(x + width / 2, panel.top + TOP - 6, _WORDS[name], "middle"))
        parts += panel.frame(range(0, int(END) + 1, 20), lambda value: f"{value:g} s")
        parts.append(panel.curve(points))
    return svg(2 * HEIGHT, parts)


def backoff_plot() -> str:
    """Return the plot of the backoff, with the two points of Pub/Sub's page."""
    panel = Panel(
        "Push backoff: seconds between sends, by the share of nacks",
        " s",
        _SECONDS,
        0,
        0.005,
        90,
        1,
    )
    shares = [number / 50 for number in range(51)]
    parts = [*panel.frame((0, 0.2, 0.4, 0.6, 0.8, 1), lambda value: f"{value:.0%}")]
    parts.append(panel.curve([(share, spacing(share)) for share in shares]))
    x, y = panel.x(0.2), panel.y(0.5)
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#d62728"/>')
    parts.append(text(x + 8, y + 14, "1 of 5 a second: about 500 ms", "start"))
    x, low, high = panel.x(1.0), panel.y(60), panel.y(30)
    parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="#d62728" stroke-width="5"/>')
    parts.append(text(x - 8, high + 16, "5 of 5 a second: 30 to 60 s", "end"))
    return svg(HEIGHT, parts)


_WORDS = {"quick": "50 ms", "slow": "3 s", "down": "down"}
_BY = "by the time in which the endpoint answers"
_WINDOWS = (1, 4, 100, 3000)
_RATES = (0.1, 1, 10, 100, 1000, 10_000)
_SECONDS = (0.01, 0.1, 1, 10, 60)

PLOTS: dict[str, Callable[[], str]] = {
    "push-window.svg": window_plot,
    "push-backoff.svg": backoff_plot,
}


if __name__ == "__main__":
    for name, plot in PLOTS.items():
        (DOCS / name).write_text(plot(), encoding="utf-8")
