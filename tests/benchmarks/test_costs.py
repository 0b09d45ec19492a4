"""What a message and a letter cost where something else is varied: `tox run -e bench`.

Each beside the bare client's equal: receiving and acknowledging, and handing on what is the same
on the wire.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from http import HTTPMethod

import pytest

from support.benchmarks.comparing import Stopwatch, sweep
from support.benchmarks.loads import CONTESTANTS, Load, settled

ROUNDS = 3
MESSAGES = 5_000
#: Bytes of payloads in one go, where they are large.
MOST = 50_000_000

pytestmark = [
    pytest.mark.parametrize("doing", CONTESTANTS),
    pytest.mark.usefixtures("report"),
]

Costs = Callable[..., None]


@pytest.fixture
def costs(benchmark, broker, admin, namespace, doing) -> Costs:
    """Return a function that measures loads, by the value of what is varied."""

    def measure(axis: str, places: Sequence[int], load: Callable[[int], Load]) -> None:
        def contestant(name: str) -> Callable[[int], Stopwatch]:
            def run(x: int) -> Stopwatch:
                topic = f"{namespace}/{uuid.uuid4().hex}"
                if count := load(x).partitions:
                    admin.call(HTTPMethod.PUT, f"persistent/{topic}/partitions", count)
                kind, settling, options = CONTESTANTS[doing][name]
                full = f"persistent://{topic}"
                return settled(kind, settling, broker.service_url, full, load(x), **options)

            return run

        contestants = {name: contestant(name) for name in CONTESTANTS[doing]}
        sweep(benchmark, axis, places, contestants, next(iter(contestants)), ROUNDS)

    return measure


def test_size(costs: Costs) -> None:
    """100 B to 1 MB a message."""
    places = (100, 1_000, 10_000, 100_000, 1_000_000)
    costs("bytes", places, lambda size: Load(min(MESSAGES, MOST // size), size))


def test_properties(costs: Costs) -> None:
    """None to 20 properties, which a letter takes along."""
    costs("properties", (0, 1, 5, 10, 20), lambda count: Load(MESSAGES, properties=count))


def test_partitions(costs: Costs) -> None:
    """1 to 64 partitions of the topic."""
    costs("partitions", (1, 4, 16, 64), lambda count: Load(MESSAGES, partitions=count))


def test_consumers(costs: Costs) -> None:
    """1 to 8 consumers in one process, each on a thread of its own."""
    costs("consumers", (1, 2, 4, 8), lambda count: Load(MESSAGES, consumers=count))
