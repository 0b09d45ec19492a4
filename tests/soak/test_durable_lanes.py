"""Durable lanes at full size: `tox run -e soak -- -k durable`. It takes about eight minutes.

`tests/integration/pull/test_durable_lanes.py` is the same, smaller.
"""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.model.lanes import check_lanes, keep
from support.pull.durable import SUBSCRIPTION, Book, Crowd, publish

MESSAGES, KEYS, EVERY = 200_000, 1_000, 20
PROCESSES, FAULTS = 3, 20

#: Messages in a second: fewer than the subscribers can handle, so that faults fall among them.
RATE = 1_600.0

#: Seconds for which each twentieth key fails: ten shortened minutes.
FAILING = 100.0

#: Bytes by which the memory of a process may grow after its start.
MOST_GROWTH = 50 << 20


class Run:
    """One run: its ledger, and the memory and the throughput."""

    def __init__(
        self,
        broker: Any,
        folder: Path,
        *,
        failing: float,
        faults: int,
        size: tuple[int, int, float] = (MESSAGES, KEYS, RATE),
        kinds: tuple[str, ...] = ("subscriber",),
    ) -> None:
        """Make one; *failing* seconds, so many faults meanwhile; messages, keys and their rate."""
        self.topic = f"persistent://public/default/lanes-{uuid.uuid4().hex}"
        self.messages, self.size, self._kinds = size[0], size, kinds
        self.book = Book(folder)
        self._broker, self._folder = broker, folder
        self._failing, self._faults = failing, faults
        self.growth = 0

    def drive(self, client: pr.Client, admin: Any) -> None:
        """Publish everything, and wait until it is handled."""
        facts = (10, 10 + self._failing, EVERY if self._failing else 0)
        url = self._broker.service_url
        crowd = Crowd(url, self.topic, self._folder, facts, admin.unload, self._kinds)
        faults, done, last = crowd.faults(), 0, time.time()
        keep(client, self.topic, SUBSCRIPTION)
        try:
            for _ in range(PROCESSES):
                crowd.join()
            load = threading.Thread(target=publish, args=(client, self.topic, *self.size))
            load.start()
            handled = 0
            while handled < self.messages and time.time() < last + 60:
                before, handled = handled, self.book.look()
                last = time.time() if handled > before else last
                crowd.measure()
                if (
                    done < self._faults
                    and handled > (done + 1) * 0.8 * self.messages / self._faults
                ):
                    next(faults)()
                    done += 1
                time.sleep(0.2)
            load.join()
            self.growth = crowd.growth()
            assert done == self._faults
        finally:
            crowd.end()

    def check(self, client: pr.Client) -> None:
        """Check that what happened to held keys is a behaviour of the model."""
        of_key = self.messages // self.size[1]
        check_lanes(client, self.topic, SUBSCRIPTION, self.book, of_key, self._folder)

    def rate(self) -> float:
        """Return how many messages of healthy keys ended in a second."""
        ends = [one.ended for (key, _), one in self.book.successes.items() if int(key[4:]) % EVERY]
        return len(ends) / (max(ends) - min(ends))


@pytest.mark.timeout(1800)
def test_durable_lanes(broker: Any, admin: Any, tmp_path: Path) -> None:
    """No inversion, nothing lost, little memory; healthy keys flow as without failures."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    rates = []
    with pr.Client(broker.service_url, logger=logger) as client:
        for name, failing, faults in (("failing", FAILING, FAULTS), ("healthy", 0.0, FAULTS)):
            folder = tmp_path / name
            folder.mkdir()
            run = Run(broker, folder, failing=failing, faults=faults)
            began = time.time()
            run.drive(client, admin)
            rates.append(run.rate())
            figures(name, run, time.time() - began)
            assert len(run.book.successes) == MESSAGES
            assert not run.book.inversions()
            run.check(client)
            assert run.growth <= MOST_GROWTH
    print(f"healthy keys: {rates[0] / rates[1]:.2f} of the run without failures")  # noqa: T201


@pytest.mark.timeout(600)
def test_durable_consumers(broker: Any, admin: Any, tmp_path: Path) -> None:
    """Consumers with their own receive loops are the same, with fewer messages."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    size, faults = (30_000, 200, 600.0), 12
    run = Run(broker, tmp_path, failing=25, faults=faults, size=size, kinds=("consumer", "asyncio"))
    began = time.time()
    with pr.Client(broker.service_url, logger=logger) as client:
        run.drive(client, admin)
        figures("consumers", run, time.time() - began)
        assert len(run.book.successes) == run.messages
        assert not run.book.inversions()
        run.check(client)
    assert run.growth <= MOST_GROWTH


def figures(name: str, run: Run, seconds: float) -> None:
    """Print what was measured."""
    print(  # noqa: T201 - the figures
        f"\n{name}: {len(run.book.successes):,} of {run.messages:,} handled, "
        f"{len(run.book.inversions())} inversions, {run.book.attempts:,} attempts, "
        f"{run.book.diverted:,} of them in the stream, memory +{run.growth >> 20} MiB, "
        f"healthy keys {run.rate():,.0f}/s, {seconds:.0f} s"
    )
