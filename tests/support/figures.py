"""What benchmarks measured, as tables, and their places in docs/performance.md.

A place begins with ``<!-- figures: NAME -->`` and ends with ``<!-- end -->``; what is between is
written by ``tox run -e bench -- --write-performance``. The name is a benchmark's, as pytest has it
without its folder: ``test_push.py::test_push[8]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

_PLACE = re.compile(r"(<!-- figures: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@attrs.frozen
class Result:
    """How a contestant did.

    Attributes:
        name: Who it is.
        rates: Messages per second: the median, the slowest round, the fastest.
        ratio: Its median, where the base has 1.
        cpu: Microseconds of processor time per message, in the round with the least; 0: unknown.
        cpu_ratio: How much more of it the base takes, where it takes 1.
        floor: What the ratio ought to be at least; 0: nothing is asked.
    """

    name: str
    rates: tuple[float, float, float]
    ratio: float
    cpu: float = 0.0
    cpu_ratio: float = 0.0
    floor: float = 0.0

    @property
    def is_low(self) -> bool:
        """Whether it is below its floor, in rate and in processor time.

        One of them alone swings with what else the machine does.
        """
        return max(self.ratio, self.cpu_ratio) < self.floor

    @property
    def rate(self) -> str:
        """The rates as a text."""
        median, slowest, fastest = self.rates
        return f"{median:,.0f}/s ({slowest:,.0f}-{fastest:,.0f}), {self.ratio:.2f}"

    @property
    def processor_time(self) -> str:
        """The processor time as a text."""
        return f"{self.cpu:.2f} µs, {self.cpu_ratio:.2f}" if self.cpu else ""

    def line(self) -> str:
        """Return it as it is printed."""
        text = f"{self.name:44} {self.rate}"
        return f"{text}; {self.processor_time}" if self.cpu else text


def table(results: Iterable[Result], notes: Mapping[str, object]) -> str:
    """Return the tables for what one benchmark measured, in Markdown."""
    lines: list[str] = []
    rows = list(results)
    if rows:
        timed = any(each.cpu for each in rows)
        lines += _rows(
            ["", "messages", "processor time"][: 2 + timed],
            [[f"`{each.name}`", each.rate, each.processor_time][: 2 + timed] for each in rows],
        )
    if rows and notes:
        lines.append("")
    if notes:
        lines += _rows(["", "measured"], [[name, str(note)] for name, note in notes.items()])
    return "\n".join(lines) + "\n"


def _rows(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]


def places(page: str) -> list[str]:
    """Return the names for which *page* has a place."""
    return [match["name"] for match in _PLACE.finditer(page)]


def written(page: str, tables: Mapping[str, str]) -> str:
    """Return *page* with *tables* in their places; the others stay."""

    def write(match: re.Match[str]) -> str:
        text = tables.get(match["name"])
        return match[0] if text is None else f"{match[1]}{text}{match[3]}"

    return _PLACE.sub(write, page)
