"""When nacks are given to pulsar-client, and how many at a time. Pure.

pulsar-client redelivers a nacked message about 100 ms after the nack; this is its minimum. It
checks every 33 ms, but each new nack restarts these 33 ms. While nacks follow each other closely,
it redelivers nothing. 33 ms after the last nack it redelivers all messages whose nacks are older
than 100 ms. Therefore due messages are given to it in short bursts, with pauses for its checks.

Each nack costs microseconds, so 100 000 take some tenths of a second. They are started earlier by
this time. Because they follow each other closely, pulsar-client holds the first of them back until
the last ones are there.
"""

from __future__ import annotations

import math

import attrs

#: Milliseconds that pulsar-client adds at least. Requests are made earlier by this time.
CLIENT_DELAY_MS = 100

#: The same in seconds.
LEAD = CLIENT_DELAY_MS / 1000

#: Seconds between two checks of pulsar-client.
_TICK = LEAD / 3

#: Seconds without a nack after a burst: one check and a little more.
PAUSE = 0.04

#: Seconds between two parts of a burst that holds back its first part: shorter than a check.
_STEP = 0.01

#: The maximum number of seconds that a burst starts early. Meanwhile this consumer gets no other
#: redeliveries. If the process is delayed, messages of the burst can be too early by this time.
AHEAD = 0.8


@attrs.frozen
class Burst:
    """What to do now.

    Attributes:
        count: How many entries to nack now: those that are due first.
        wait: Seconds until the next check.
        holds_until: The due time of entries that were started early; 0 if there are none.
    """

    count: int
    wait: float
    holds_until: float = 0.0


def first_look(head: float, count: int, cost: float) -> float:
    """Return the time of the check for *count* entries, of which the first is due at *head*.

    *cost* is the number of seconds that one nack takes.
    """
    return head - (AHEAD if _ahead(count, cost) > LEAD else LEAD)


def _ahead(count: int, cost: float) -> float:
    """Return how many seconds before their due time *count* entries must be started."""
    return min(max(LEAD, count * cost + _TICK), AHEAD)


def plan_burst(
    now: float, upcoming: list[tuple[float, int]], cost: float, holds_until: float = 0.0
) -> Burst:
    """Decide what to nack now.

    Args:
        now: The time in seconds.
        upcoming: Due times with their numbers of entries, the earliest first: everything due within
            `AHEAD`, and the next due time.
        cost: The number of seconds that one nack takes.
        holds_until: The value of the last burst.
    """
    ready = total = 0
    target = holds_until
    waits = []
    for due, count in upcoming:
        total += count
        start = due - _ahead(total, cost)
        if due - LEAD <= now:
            ready = total
        elif start <= now:
            target = max(target, due)
        else:
            waits.append(start - now)
    held = sum(count for due, count in upcoming if due <= target)
    # A check of pulsar-client follows the last nack, and must not be too early.
    left = target - (_TICK - _STEP) - now
    if held and left > _STEP:
        return Burst(math.ceil(held * _STEP / left), _STEP, target)
    if target:
        ready = max(ready, held)
    return Burst(ready, PAUSE if ready else min(waits, default=PAUSE))
