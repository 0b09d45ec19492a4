"""How far a message travels through the code, counted on the broker in memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

ROOT = str(Path(pr.__file__).parent)

#: Files, functions and calls from the publication of a message until nothing is left to do. A new
#: step on the way is worth a thought; if it is right, it changes the figure here.
LIMITS = {"success": (10, 37, 60), "failures": (34, 190, 1_000), "in order": (28, 134, 620)}


class Way:
    """Counts the calls of this package's functions on its own threads, without those for tests."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.counts = False

    def __call__(self, frame: Any, event: str, _argument: Any) -> None:
        """Count a call."""
        code = frame.f_code
        is_ours = code.co_filename.startswith(ROOT) and "/testing/" not in code.co_filename
        if event == "call" and self.counts and is_ours:
            self.calls[code.co_filename, code.co_qualname] += 1

    @property
    def length(self) -> tuple[int, int, int]:
        """Return how many files, functions and calls there were."""
        files = {name for name, _ in self.calls}
        return len(files), len(self.calls), sum(self.calls.values())


@pytest.fixture
def way() -> Any:
    """Return a counter that sees the threads that are started from now on."""
    way = Way()
    threading.setprofile(way)  # not for the main thread, which only runs the test
    yield way
    threading.setprofile(None)


@pytest.mark.nightly
@pytest.mark.parametrize("case", LIMITS)
def test_the_way_of_a_message(way: Way, memory: MemoryBroker, case: str) -> None:
    """The same message was handled before, so that nothing is opened on the way."""
    failures = 0 if case == "success" else 3
    attempts: Counter[bytes] = Counter()

    def handle(message: Any) -> None:
        attempts[message.data()] += 1
        if attempts[message.data()] <= failures:
            raise ValueError("bad")

    kind = pulsar.ConsumerType.KeyShared if case == "in order" else pulsar.ConsumerType.Shared
    policy = pr.RetryPolicy(max_attempts=5, backoff=pr.Fixed(10))
    run: Callable[[bytes], None] = lambda data: (  # noqa: E731 - one line of the way
        memory.send("orders", data, key="k"),
        memory.join("orders", "billing"),
        memory.clock.settle(),
    )
    with memory.client().subscriber(
        "orders", "billing", handle, retry_policy=policy, consumer_type=kind
    ):
        run(b"first")
        way.counts = True
        run(b"second")
        way.counts = False
    assert attempts[b"second"] == 1 + failures
    for found, limit in zip(way.length, LIMITS[case], strict=True):
        assert limit / 2 < found <= limit, way.length
