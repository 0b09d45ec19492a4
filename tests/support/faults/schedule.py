"""A schedule of faults that is the same for the same seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs

#: The faults, and the weight of each in the schedule.
FAULTS = {
    "kill a consumer": 6,
    "unload the topic": 4,
    "unload the retry topic": 4,
    "cut": 4,
    "reset": 4,
    "stall": 3,
    "no data to client": 2,
    "slow": 2,
    "refuse": 2,
    "fence": 2,
    "kill the broker": 1,
    "restart the broker": 1,
}


@attrs.frozen
class Step:
    """One fault.

    Attributes:
        number: The number of the step, from 1.
        fault: The name of the fault.
        messages: How many messages are published before it.
        wait: Seconds between the messages and the fault.
        lasts: How many seconds the fault lasts, if it has a duration.
        choice: A random number for further choices.
    """

    number: int
    fault: str
    messages: int
    wait: float
    lasts: float
    choice: int

    def __str__(self) -> str:
        return (
            f"{self.number:4} {self.fault} after {self.messages} messages and {self.wait:.2f} s, "
            f"for {self.lasts:.1f} s"
        )


def schedule(seed: int) -> Iterator[Step]:
    """Yield steps without end."""
    chance = random.Random(seed)
    number = 0
    while True:
        number += 1
        yield Step(
            number,
            chance.choices([*FAULTS], [*FAULTS.values()])[0],
            chance.randint(10, 120),
            chance.uniform(0, 1.5),
            chance.uniform(0.2, 5),
            chance.randrange(1 << 16),
        )
