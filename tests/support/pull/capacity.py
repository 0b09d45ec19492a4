"""A service whose capacity changes, and handlers that call it without a pause; in virtual time."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

import attrs

from pulsar_retry.pull.rules.limit import AdaptiveLimit


@attrs.frozen
class Phase:
    """How the service works for some time.

    Attributes:
        width: How many requests it works on at a time.
        seconds: The mean time for one.
        until: When the phase ends.
    """

    width: int
    seconds: float
    until: float


@attrs.frozen
class Handled:
    """A request that was answered."""

    at: float
    latency: float


def run(
    phases: list[Phase],
    limit: Callable[[], int],
    *,
    sample: Callable[[random.Random], float] = lambda _: 1.0,
    record: Callable[[float, float, int], None] = lambda *_: None,
    seed: int = 1,
) -> list[Handled]:
    """Run handlers, as many at a time as *limit* returns, and return what was answered.

    Args:
        phases: What the service does.
        limit: Returns how many handlers may run.
        sample: Returns the time of a request, relative to the mean.
        record: Called for each answer with the time of the call, the time, and how many run.
        seed: Determines the times.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    handled: list[Handled] = []
    queue: deque[float] = deque()  # when each request that waits was made
    working: list[tuple[float, float]] = []  # when each will be done, and when it was made
    now, left = 0.0, list(phases)
    while True:
        while left and now >= left[0].until:
            left.pop(0)
        if not left:
            return handled
        phase = left[0]
        while len(queue) + len(working) < limit():
            queue.append(now)
        while queue and len(working) < phase.width:
            took = phase.seconds * sample(chance)
            heapq.heappush(working, (now + took, queue.popleft()))
        now, made = heapq.heappop(working)
        handled.append(Handled(now, now - made))
        record(made, now, 1 + len(queue) + len(working))


def adaptive(phases: list[Phase], maximum: int = 200, **options: object) -> list[Handled]:
    """Run handlers with an adaptive limit."""
    limit = AdaptiveLimit(maximum)
    return run(
        phases,
        lambda: limit.limit,
        record=lambda made, now, running: limit.record(made, now, failed=False, running=running),
        **options,  # type: ignore[arg-type]
    )


def rate(handled: list[Handled], since: float, until: float) -> float:
    """Return how many requests were answered a second."""
    return sum(since <= each.at < until for each in handled) / (until - since)


def p99(handled: list[Handled], since: float, until: float) -> float:
    """Return the 99th percentile of the latency."""
    found = sorted(each.latency for each in handled if since <= each.at < until)
    return found[int(len(found) * 0.99)]
