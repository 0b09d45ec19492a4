"""Runs contestants in turn within one benchmark, and compares them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self, TypeVar

import attrs

from support.benchmarks.figures import Result, Time


class Stopwatch:
    """Measures the time of a number of messages.

    Attributes:
        rate: Messages per second.
        cpu: Microseconds of processor time per message, by *clock* (such as `time.thread_time`).
            It depends less than the rate on other programs on the machine.
    """

    rate: float
    cpu: float

    def __init__(self, messages: int, clock: Callable[[], float]) -> None:
        self._messages = messages
        self._clock = clock

    @classmethod
    def of(cls, messages: int, seconds: float, cpu_seconds: float) -> Self:
        """Return a stopwatch for times that another program measured."""
        watch = cls(messages, time.process_time)
        watch.rate, watch.cpu = messages / seconds, cpu_seconds / messages * 1e6
        return watch

    def __enter__(self) -> Self:
        self._start, self._cpu_start = time.perf_counter(), self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.rate = self._messages / (time.perf_counter() - self._start)
        self.cpu = (self._clock() - self._cpu_start) / self._messages * 1e6


_Name = TypeVar("_Name", bound=Hashable)
_Value = TypeVar("_Value")


def interleaved(
    benchmark: Any, contestants: Mapping[_Name, Callable[[], _Value]], rounds: int
) -> dict[_Name, list[_Value]]:
    """Run *contestants* in turn, *rounds* times; return what they returned."""
    rounds_of: dict[_Name, list[_Value]] = {name: [] for name in contestants}

    def one_round() -> None:
        # A broker still works for the contestant before, so that is not always the same one.
        for name in random.sample(list(contestants), len(contestants)):
            rounds_of[name].append(contestants[name]())

    benchmark.pedantic(one_round, rounds=rounds, warmup_rounds=0)
    return rounds_of


def compare(
    benchmark: Any,
    contestants: Mapping[str, Callable[[], float | Stopwatch]],
    base: str,
    rounds: int,
    floors: Mapping[str, float] | None = None,
    *,
    by_cpu: bool = False,
) -> None:
    """Run *contestants* in turn, *rounds* times; report medians, spread and the ratio to *base*.

    Each returns messages per second for one round, or a stopwatch. *floors* are the minimum ratios
    of some contestants. With *by_cpu*, they apply to the processor time, not to the rate.
    """
    rounds_of = interleaved(benchmark, contestants, rounds)
    unit = statistics.median(_rates(rounds_of[base]))
    results = []
    for name, values in rounds_of.items():
        rates = _rates(values)
        median = statistics.median(rates)
        result = Result(
            name,
            (median, min(rates), max(rates)),
            median / unit,
            _least(values),
            _cpu_ratio(rounds_of[base], values),
            (floors or {}).get(name, 0.0),
            by_cpu,
        )
        results.append(attrs.asdict(result))
    benchmark.extra_info["results"] = results


def compare_times(
    benchmark: Any,
    contestants: Mapping[str, Callable[[], tuple[float, float]]],
    base: str,
    rounds: int,
    ceilings: Mapping[str, float] | None = None,
) -> None:
    """Run *contestants* in turn; report how long they took, and the ratio to *base*.

    Each returns seconds, and seconds of processor time. *ceilings* are the maximum ratios of some
    contestants.
    """
    rounds_of = interleaved(benchmark, contestants, rounds)
    medians = {
        name: [statistics.median(each) for each in zip(*values, strict=True)]
        for name, values in rounds_of.items()
    }
    times = []
    for name, values in rounds_of.items():
        (median, cpu), walls = medians[name], [wall for wall, _ in values]
        time_ = Time(
            name,
            (median, min(walls), max(walls)),
            median / medians[base][0],
            cpu,
            cpu / medians[base][1],
            (ceilings or {}).get(name, 0.0),
        )
        times.append(attrs.asdict(time_))
    benchmark.extra_info["times"] = times


def _rates(values: Sequence[float | Stopwatch]) -> list[float]:
    return [value.rate if isinstance(value, Stopwatch) else value for value in values]


def _cpus(values: Sequence[float | Stopwatch]) -> list[float]:
    return [value.cpu for value in values if isinstance(value, Stopwatch)]


def _least(values: Sequence[float | Stopwatch]) -> float:
    """Return the least processor time; the rest is noise. 0 if none was measured."""
    return min(_cpus(values), default=0.0)


def _cpu_ratio(base: Sequence[float | Stopwatch], values: Sequence[float | Stopwatch]) -> float:
    """Return the ratio of the processor times of *base* and a contestant: the median of the rounds.

    The load from other programs changes from round to round, but less within one round.
    """
    pairs = zip(_cpus(base), _cpus(values), strict=False)
    return statistics.median([theirs / ours for theirs, ours in pairs if ours] or [0.0])
