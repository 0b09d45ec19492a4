"""Contestants in one run, interleaved."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs
from figures import Result


class Stopwatch:
    """Takes the time of a number of messages.

    Attributes:
        rate: Messages per second.
        cpu: Microseconds of processor time per message, by *clock* (such as `time.thread_time`).
            It depends less than the rate on what else the machine does.
    """

    rate: float
    cpu: float

    def __init__(self, messages: int, clock: Callable[[], float]) -> None:
        self._messages = messages
        self._clock = clock

    @classmethod
    def of(cls, messages: int, seconds: float, cpu_seconds: float) -> Self:
        """Return one of somebody else's times."""
        watch = cls(messages, time.process_time)
        watch.rate, watch.cpu = messages / seconds, cpu_seconds / messages * 1e6
        return watch

    def __enter__(self) -> Self:
        self._start, self._cpu_start = time.perf_counter(), self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.rate = self._messages / (time.perf_counter() - self._start)
        self.cpu = (self._clock() - self._cpu_start) / self._messages * 1e6


def compare(
    benchmark: Any,
    contestants: Mapping[str, Callable[[], float | Stopwatch]],
    base: str,
    rounds: int,
    floors: Mapping[str, float] | None = None,
) -> None:
    """Run *contestants* in turn, *rounds* times; report medians, spread and the ratio to *base*.

    Each returns messages per second for one round, or a stopwatch. *floors* are the least ratios
    that some of them ought to have.
    """
    rounds_of: dict[str, list[float | Stopwatch]] = {name: [] for name in contestants}
    turn = deque(contestants)

    def one_round() -> None:
        turn.rotate()  # being the first after a pause is no advantage, nor a handicap
        for name in turn:
            rounds_of[name].append(contestants[name]())

    benchmark.pedantic(one_round, rounds=rounds, warmup_rounds=0)
    unit = statistics.median(_rates(rounds_of[base]))
    unit_cpu = _least(rounds_of[base])
    results = []
    for name, values in rounds_of.items():
        rates = _rates(values)
        median, cpu = statistics.median(rates), _least(values)
        result = Result(
            name,
            (median, min(rates), max(rates)),
            median / unit,
            cpu,
            unit_cpu / cpu if cpu else 0.0,
            (floors or {}).get(name, 0.0),
        )
        results.append(attrs.asdict(result))
    benchmark.extra_info["results"] = results


def _rates(values: list[float | Stopwatch]) -> list[float]:
    return [value.rate if isinstance(value, Stopwatch) else value for value in values]


def _least(values: list[float | Stopwatch]) -> float:
    """Return the least processor time; 0 where none was taken. The rest is noise."""
    return min((value.cpu for value in values if isinstance(value, Stopwatch)), default=0.0)
