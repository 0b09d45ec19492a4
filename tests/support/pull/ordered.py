"""Subscribers with lanes in processes of their own, and kills, joins and departures of them.

As a program it is one of these processes: URL, topic, ledger, the seconds for which keys fail, and
which key out of how many. The seconds begin when the first of the processes handles a message: a
busy machine starts them late.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pulsar

import pulsar_retry as pr
from support.reading import SUBSCRIPTION
from support.waiting import eventually

#: Between two attempts, in seconds.
PAUSE = 0.5


def key_of(number: int) -> str:
    """Return the name of a key."""
    return f"key-{number}"


class Process:
    """A subscriber in a process of its own.

    Attributes:
        ledger: The file in which it notes what it handles.
    """

    def __init__(self, url: str, topic: str, ledger: Path, *facts: float) -> None:
        """Start it; for *facts*, see `main`."""
        self.ledger = ledger
        tests = str(Path(__file__).parents[2])
        arguments = [url, topic, str(ledger), *map(str, facts)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.pull.ordered", *arguments],
            env={
                **os.environ,
                "PYTHONPATH": f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            },
        )

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """End it by SIGTERM, and return its exit code."""
        self._process.terminate()
        return self._process.wait(120)

    def has_begun(self) -> bool:
        """Tell whether it has handled a message."""
        return self.ledger.exists() and self.ledger.stat().st_size > 0


@attrs.frozen
class Handled:
    """One attempt at a message: its key, its number, when it began and ended, and the result."""

    key: str
    number: int
    began: float
    ended: float
    is_success: bool


class Book:
    """Reads the ledgers of all processes, which still grow.

    Attributes:
        successes: The first success of each message, by key and number.
        failures: How many attempts have failed.
    """

    def __init__(self, folder: Path) -> None:
        """Read the ledgers in *folder*."""
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.successes: dict[tuple[str, int], Handled] = {}
        self.failures = 0

    def look(self) -> int:
        """Read what is new; return how many messages have succeeded."""
        for path in self._folder.glob("*.ledger"):
            with path.open() as file:
                file.seek(self._read.get(path, 0))
                while (line := file.readline()).endswith("\n"):
                    self._enter(line)
                    self._read[path] = file.tell()
        return len(self.successes)

    def _enter(self, line: str) -> None:
        key, number, began, ended, success = line.split()
        one = Handled(key, int(number), float(began), float(ended), success == "1")
        self.failures += not one.is_success
        known = self.successes.get((one.key, one.number))
        if one.is_success and (known is None or one.ended < known.ended):
            self.successes[one.key, one.number] = one

    def inversions(self) -> list[tuple[Handled, Handled]]:
        """Return the pairs of a message and its successor that ended before, or began too early."""
        by_key: dict[str, list[Handled]] = defaultdict(list)
        for one in self.successes.values():
            by_key[one.key].append(one)
        found = []
        for handled in by_key.values():
            handled.sort(key=lambda one: one.number)
            pairs = pairwise(handled)
            found += [(one, other) for one, other in pairs if other.began < one.ended]
        return found


@attrs.define
class Crowd:
    """The processes of one subscription, and what is done to them.

    Attributes:
        url: The broker.
        topic: The topic.
        folder: Where the ledgers are.
        facts: See `main`.
        unload: Unloads the topic, or a part of it.
    """

    url: str
    topic: str
    folder: Path
    facts: tuple[float, ...]
    unload: Callable[[], object]
    processes: list[Process] = attrs.field(factory=list)
    started: int = 0

    def join(self) -> None:
        """Start one more process."""
        self.started += 1
        ledger = self.folder / f"{self.started}.ledger"
        self.processes.append(Process(self.url, self.topic, ledger, *self.facts))

    def kill(self) -> None:
        """Kill the oldest process, and start another one."""
        self.processes.pop(0).kill()
        self.join()

    def leave(self) -> None:
        """End the oldest process properly, and start another one before."""
        self.join()
        assert self.processes.pop(0).end() == 0

    def is_at_work(self, book: Book, messages: int) -> bool:
        """Wait until the oldest process has begun; tell whether it has.

        It may start so slowly that nothing is left for it. Until it has begun it does not end by
        itself at a SIGTERM.
        """
        oldest = self.processes[0]
        eventually(lambda: oldest.has_begun() or book.look() >= messages)
        return oldest.has_begun()

    def faults(self) -> Iterator[Callable[[], object]]:
        """Yield faults of all kinds in turn, for ever."""
        while True:
            yield self.kill
            yield self.unload
            yield self.leave

    def end(self) -> None:
        """Kill all processes."""
        for each in self.processes:
            each.kill()


def publish(client: pr.Client, topic: str, messages: int, keys: int, rate: float) -> None:
    """Publish so many messages, of all keys in turn, at most *rate* in a second."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        block_if_queue_full=True,
        send_timeout_millis=0,  # none may be missing, however long a topic takes to come back
    )
    began = time.monotonic()
    for number in range(messages):
        if number % 100 == 0:
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        text = f"{number // keys}".encode()
        producer.send_async(text, lambda *_: None, partition_key=key_of(number % keys))
    producer.flush()


def first_in(folder: Path) -> float:
    """Return when a process with a ledger in *folder* has called this first."""
    path = folder / "first"
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
    return path.stat().st_mtime


def main() -> None:
    """Handle messages until SIGTERM; each *every*-th key fails for some seconds."""
    url, topic, path, seconds, every = sys.argv[1:]
    fails_until, fails_every = float(seconds), int(every)
    lock = threading.Lock()
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with (
        Path(path).open("a", buffering=1) as ledger,
        pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client,
    ):

        def handle(message: Any) -> None:
            began = time.time()
            key, number = message.partition_key(), message.data().decode()
            fails = (
                int(key.partition("-")[2]) % fails_every == 0
                and began - first_in(Path(path).parent) < fails_until
            )
            with lock:
                facts = (key, number, f"{began:.6f}", f"{time.time():.6f}", int(not fails))
                ledger.write(" ".join(map(str, facts)) + "\n")
            if fails:
                raise TimeoutError("no answer")

        client.subscriber(
            topic,
            SUBSCRIPTION,
            handle,
            consumer_type=pulsar.ConsumerType.KeyShared,
            retry_policy=pr.RetryPolicy(max_attempts=10_000, backoff=pr.Fixed(PAUSE)),
            concurrency=4,
        ).run()


if __name__ == "__main__":
    main()
