"""What happens in one simulation; a seed determines it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs

#: What can go wrong, and whether a message may then be handled more often than it fails.
KINDS = ("refuse", "lose", "crash", "kill", "unload", "broker", "twice", "nack")


class Fault(NamedTuple):
    """One fault.

    Attributes:
        kind: One of `KINDS`.
        at: When it happens, in seconds.
        target: The process, or the topic: 0 is the main topic.
        times: How often, one after the other.
    """

    kind: str
    at: float
    target: int
    times: int


@attrs.frozen
class Scenario:
    """One simulation.

    Attributes:
        seed: Decides which thread runs next, and how long receipts and handlers take.
        shell: "subscriber" or "consumer".
        fates: For each message how often its handler fails.
        retries: The retries that the policy allows.
        delay: Seconds between the attempts.
        processes: How many consumers there are.
        concurrency: The threads of a subscriber, or the letters that a consumer has in flight.
        faults: What goes wrong.
        copied: Whether all messages are equal, and have the origin of another message.
    """

    seed: int
    shell: str
    fates: tuple[int, ...]
    retries: int
    delay: float
    processes: int
    concurrency: int
    faults: tuple[Fault, ...]
    copied: bool = False


def scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    chance = random.Random(seed)
    retries = chance.choice([0, 1, 1, 2, 3])
    processes = chance.choice([1, 2])
    return Scenario(
        seed,
        chance.choice(["subscriber", "subscriber", "consumer"]),
        tuple(chance.choice([0, 1, retries, 9]) for _ in range(chance.randint(1, 4))),
        retries,
        chance.choice([0.0, 0.3, 1.0, 3.0]),
        processes,
        chance.choice([1, 2, 3]),
        tuple(
            Fault(
                chance.choice(KINDS),
                round(chance.uniform(0, 8), 2),
                chance.randrange(2),
                chance.choice([1, 1, 2]),
            )
            for _ in range(chance.choice([0, 1, 1, 2, 3]))
        ),
        chance.random() < 0.1,
    )


def smaller(given: Scenario) -> Iterator[Scenario]:
    """Yield simpler scenarios: fewer faults, messages, processes and threads."""
    for place in range(len(given.faults)):
        yield attrs.evolve(given, faults=given.faults[:place] + given.faults[place + 1 :])
    for place in range(len(given.fates)):
        if len(given.fates) > 1:
            yield attrs.evolve(given, fates=given.fates[:place] + given.fates[place + 1 :])
    simpler: dict[str, Any] = {"processes": 1, "concurrency": 1, "retries": 1, "delay": 1.0}
    for name, value in simpler.items():
        if getattr(given, name) > value:
            yield attrs.evolve(given, **{name: value})
