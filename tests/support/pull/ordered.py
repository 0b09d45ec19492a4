"""Subscribers with lanes in processes of their own, which join, leave and are killed.

As a program it is one of these processes: URL, topic, and the folder where each has a ledger. Some
keys fail for some seconds, which begin when the first process handles a message: a busy machine
starts them late.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pulsar

import pulsar_retry as pr
from support.appended import whole_lines
from support.reading import SUBSCRIPTION
from support.waiting import eventually

#: Between two attempts, in seconds.
PAUSE = 0.5

#: For how many seconds keys fail, and which of them.
FAILS, EVERY = 14, 20


@attrs.frozen
class Handled:
    """One attempt at a message: whose, its key, its number, when it began and ended, its result."""

    process: int = attrs.field(converter=int)
    key: str
    number: int = attrs.field(converter=int)
    began: float = attrs.field(converter=float)
    ended: float = attrs.field(converter=float)
    is_success: bool = attrs.field(converter=lambda text: text == "True")


@attrs.define
class Crowd:
    """The processes of one subscription."""

    url: str
    topic: str
    folder: Path
    processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    def join(self) -> None:
        """Start one more process."""
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "support.pull.ordered", self.url, self.topic, self.folder]
        self.processes.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}))

    def kill(self) -> None:
        """Kill the oldest process, and start another one."""
        oldest = self.processes.pop(0)
        oldest.kill()
        oldest.wait()
        self.join()

    def leave(self) -> None:
        """End the oldest process properly, and start another one before."""
        self.join()
        oldest = self.processes.pop(0)
        oldest.terminate()
        assert oldest.wait(120) == 0

    def end(self) -> None:
        """Kill all processes."""
        for each in self.processes:
            each.kill()
            each.wait()

    def handled(self) -> list[Handled]:
        """Return all attempts so far."""
        ledgers = self.folder.glob("*.ledger")
        return [Handled(*line.split()) for each in ledgers for line in whole_lines(each)]

    def successes(self) -> dict[tuple[str, int], Handled]:
        """Return the first success of each message so far, by key and number."""
        found: dict[tuple[str, int], Handled] = {}
        for one in sorted(self.handled(), key=lambda one: one.ended):
            if one.is_success:
                found.setdefault((one.key, one.number), one)
        return found

    def is_at_work(self, messages: int) -> bool:
        """Wait until the oldest process has begun; tell whether it has.

        It may start so slowly that nothing is left for it. Until it has begun it does not end by
        itself at a SIGTERM.
        """
        oldest = self.processes[0].pid

        def has_begun() -> bool:
            return any(one.process == oldest for one in self.handled())

        eventually(lambda: has_begun() or len(self.successes()) >= messages)
        return has_begun()

    def inversions(self) -> list[tuple[Handled, Handled]]:
        """Return the pairs of a message and its successor that ended before, or began too early."""
        by_key: dict[str, list[Handled]] = defaultdict(list)
        for _, one in sorted(self.successes().items()):
            by_key[one.key].append(one)
        pairs = [pair for each in by_key.values() for pair in pairwise(each)]
        return [(one, other) for one, other in pairs if other.began < one.ended]


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
        producer.send_async(text, lambda *_: None, partition_key=f"key-{number % keys}")
    producer.flush()


def first_in(folder: Path) -> float:
    """Return when a process with a ledger in *folder* has called this first."""
    path = folder / "first"
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
    return path.stat().st_mtime


def main(url: str, topic: str, folder: str) -> None:
    """Handle messages until SIGTERM."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with (
        Path(folder, f"{os.getpid()}.ledger").open("ab", buffering=0) as ledger,
        pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client,
    ):

        def handle(message: Any) -> None:
            began, key = time.time(), message.partition_key()
            fails = int(key.partition("-")[2]) % EVERY == 0
            fails = fails and began - first_in(Path(folder)) < FAILS
            facts = (os.getpid(), key, message.data().decode(), began, time.time(), not fails)
            ledger.write(" ".join(map(str, facts)).encode() + b"\n")
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
    main(*sys.argv[1:])
