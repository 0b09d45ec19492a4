"""The results of benchmarks as tables, and their places in tests/benchmarks/README.md.

A place begins with ``<!-- figures: NAME -->`` and ends with ``<!-- end -->``. The text between them
is written by ``tox run -e bench -- --write-performance``. NAME is pytest's name of a benchmark,
without its folder: ``test_push.py::test_push[8]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import attrs

_PLACE = re.compile(r"(<!-- figures: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@attrs.frozen
class Result:
    """The result of one contestant.

    Attributes:
        name: The contestant.
        rates: Messages per second: the median, the slowest round, the fastest round.
        ratio: Its median rate, divided by that of the base.
        cpu: Microseconds of processor time per message, in the round with the least; 0 if unknown.
        cpu_ratio: The processor time of the base, divided by that of this contestant: the median of
            the rounds, in each of which the two ran one after the other.
        floor: The minimum of the ratio; 0 for none.
        by_cpu: Whether the floor applies to processor time only.
    """

    name: str
    rates: tuple[float, float, float]
    ratio: float
    cpu: float = 0.0
    cpu_ratio: float = 0.0
    floor: float = 0.0
    by_cpu: bool = False

    @property
    def judged(self) -> float:
        """The ratio that is compared with the floor.

        It is the better one of the rate's ratio and the processor time's ratio, because both vary
        with other load on the machine; with `by_cpu`, it is the latter.
        """
        return self.cpu_ratio if self.by_cpu else max(self.ratio, self.cpu_ratio)

    @property
    def missed(self) -> str:
        """What is wrong with the result, or ""."""
        if self.judged >= self.floor:
            return ""
        return f"{self.name} has {self.judged:.2f}, not {self.floor:.2f}"

    @property
    def rate(self) -> str:
        """The rates as a text."""
        median, slowest, fastest = self.rates
        return f"{median:,.0f}/s ({slowest:,.0f}-{fastest:,.0f}), {self.ratio:.2f}"

    @property
    def processor_time(self) -> str:
        """The processor time as a text."""
        return f"{self.cpu:.2f} µs, {self.cpu_ratio:.2f}" if self.cpu else ""


@attrs.frozen
class Time:
    """How long something took; shorter is better.

    Attributes:
        name: What took that long.
        seconds: The median, the shortest and the longest time.
        ratio: Its median, divided by that of the base.
        cpu: Seconds of processor time: the median.
        cpu_ratio: The processor time, divided by that of the base.
        ceiling: The maximum of the ratio; 0 for none.
    """

    name: str
    seconds: tuple[float, float, float]
    ratio: float
    cpu: float
    cpu_ratio: float
    ceiling: float = 0.0

    @property
    def missed(self) -> str:
        """What is wrong with the time, or ""."""
        if not self.ceiling or min(self.ratio, self.cpu_ratio) <= self.ceiling:
            return ""
        return f"{self.name} takes {self.ratio:.2f} times as long, not {self.ceiling:.2f}"

    @property
    def texts(self) -> tuple[str, str]:
        """The times as texts."""
        median, shortest, longest = (1000 * each for each in self.seconds)
        return (
            f"{median:.0f} ms ({shortest:.0f}-{longest:.0f}), {self.ratio:.2f}",
            f"{1000 * self.cpu:.0f} ms, {self.cpu_ratio:.2f}",
        )


@attrs.frozen
class Figures:
    """The results of one benchmark.

    Attributes:
        results: The results of contestants.
        times: How long things took.
        notes: Other measurements.
    """

    results: tuple[Result, ...] = ()
    times: tuple[Time, ...] = ()
    notes: Mapping[str, object] = attrs.field(factory=dict)

    @classmethod
    def taken(cls, info: Mapping[str, Any]) -> Self:
        """Return the figures that `compare` and similar functions stored in ``extra_info``."""
        notes = dict(info)
        return cls(
            tuple(Result(**each) for each in notes.pop("results", ())),
            tuple(Time(**each) for each in notes.pop("times", ())),
            notes,
        )

    def missed(self) -> list[str]:
        """Return which figures miss their floor or ceiling."""
        return [each.missed for each in (*self.results, *self.times) if each.missed]

    def table(self) -> str:
        """Return the tables in Markdown."""
        tables = [self._results(), self._times()]
        notes = [[name, str(note)] for name, note in self.notes.items()]
        tables.append(_rows(["", "measured"], notes))
        return "\n\n".join("\n".join(each) for each in tables if each) + "\n"

    def lines(self) -> Iterator[str]:
        """Yield the figures as lines to print."""
        for result in self.results:
            texts = filter(None, (result.rate, result.processor_time))
            yield f"{result.name:44} {'; '.join(texts)}"
        for time in self.times:
            yield f"{time.name:44} {'; '.join(time.texts)}"
        for name, note in self.notes.items():
            yield f"{name:44} {note}"

    def _results(self) -> list[str]:
        timed = 2 + any(each.cpu for each in self.results)
        return _rows(
            ["", "messages", "processor time a message"][:timed],
            [[f"`{each.name}`", each.rate, each.processor_time][:timed] for each in self.results],
        )

    def _times(self) -> list[str]:
        rows = [[f"`{each.name}`", *each.texts] for each in self.times]
        return _rows(["", "time", "processor time"], rows)


def _rows(head: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    return [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]


def places(page: str) -> list[str]:
    """Return the names for which *page* has a place."""
    return [match["name"] for match in _PLACE.finditer(page)]


def written(page: str, tables: Mapping[str, str]) -> str:
    """Return *page* with *tables* in their places; other places are unchanged."""

    def write(match: re.Match[str]) -> str:
        text = tables.get(match["name"])
        return match[0] if text is None else f"{match[1]}{text}{match[3]}"

    return _PLACE.sub(write, page)


def unplaced(page: str, names: Iterable[str]) -> list[str]:
    """Return the *names* for which *page* has no place."""
    return sorted(set(names) - set(places(page)))
