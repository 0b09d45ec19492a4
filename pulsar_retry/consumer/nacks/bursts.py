"""When nacks are handed to pulsar-client, and how many at a time. Pure.

pulsar-client redelivers a nacked message some 100 ms after it was told (its floor). It looks every
33 ms, but starts that wait anew with every nack that it is told of: while they follow each other
closely it redelivers nothing, and 33 ms after the last of them everything that it was told more
than 100 ms before. So due messages are handed over in short bursts with pauses for it to look.

Handing over costs microseconds each, and so 100 000 at once take some tenths of a second. They are
begun with so much earlier; that they follow each other closely then holds back the first of them
until the last are there.
"""

from __future__ import annotations

import math

import attrs

#: Milliseconds that pulsar-client adds at least; we ask that much earlier.
CLIENT_DELAY_MS = 100

#: The same in seconds.
LEAD = CLIENT_DELAY_MS / 1000

#: Seconds between two looks of pulsar-client's.
_TICK = LEAD / 3

#: Seconds that it is left alone after a burst: one look and a little more.
PAUSE = 0.04

#: Seconds between two parts of a burst that holds back what it began with: shorter than a look.
_STEP = 0.01

#: Seconds that a burst is begun earlier at most. Meanwhile nothing else of that consumer comes
#: back, and where the process is held up, what was handed over may come so much too early.
AHEAD = 0.8


@attrs.frozen
class Burst:
    """What to do now.

    Attributes:
        count: How many entries to hand over, those first due.
        wait: Seconds until the next look.
        holds_until: The due time for which more was begun with early; 0: none.
    """

    count: int
    wait: float
    holds_until: float = 0.0


def first_look(head: float, count: int, cost: float) -> float:
    """Return when to look at *count* entries, the first of which is due at *head*.

    *cost* is the seconds that it takes to hand one over.
    """
    return head - (AHEAD if _ahead(count, cost) > LEAD else LEAD)


def _ahead(count: int, cost: float) -> float:
    """Return how much earlier than due *count* entries are to be begun with."""
    return min(max(LEAD, count * cost + _TICK), AHEAD)


def plan_burst(
    now: float, upcoming: list[tuple[float, int]], cost: float, holds_until: float = 0.0
) -> Burst:
    """Decide what to hand over.

    Args:
        now: The time in seconds.
        upcoming: When how many entries are due, the earliest first; all that is due within `AHEAD`,
            and what is due next.
        cost: Seconds that it takes to hand one over.
        holds_until: What the last burst said.
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
    # What comes last is followed by a look of pulsar-client's, which must not be too early.
    left = target - (_TICK - _STEP) - now
    if held and left > _STEP:
        return Burst(math.ceil(held * _STEP / left), _STEP, target)
    if target:
        ready = max(ready, held)
    return Burst(ready, PAUSE if ready else min(waits, default=PAUSE))
