"""Subscribers with durable lanes in processes of their own, and faults, joins and kills of them.

As a program it is one of these processes: URL, topic, ledger, whether it has a subscriber, a
consumer or one for asyncio, the seconds between which keys fail, and which key out of how many. The
seconds begin when the first of the processes handles a message: a busy machine starts them late.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
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
from pulsar_retry.wire.lanes import LANE_ENTRY
from support.reading import eventually

SUBSCRIPTION = "ledger"

_QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

_OPTIONS: dict[str, Any] = {
    "consumer_type": pulsar.ConsumerType.KeyShared,
    "initial_position": pulsar.InitialPosition.Earliest,
    "dead_letter_policy": pr.DeadLetterPolicy(10_000),
    "ordering": "durable",
}

#: Between two attempts, in seconds.
PAUSE = 0.5


def key_of(number: int) -> str:
    """Return the name of a key."""
    return f"key-{number}"


class Process:
    """A subscriber or a consumer in a process of its own.

    Attributes:
        process: The process.
        ledger: The file in which it notes what it handles.
    """

    def __init__(self, url: str, topic: str, ledger: Path, kind: str, *facts: float) -> None:
        """Start it; for *facts*, see `main`."""
        self.ledger = ledger
        tests = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "support.pull.durable",
                url,
                topic,
                str(ledger),
                kind,
                *map(str, facts),
            ],
            env={
                **os.environ,
                "PYTHONPATH": f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            },
        )

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._note_end()

    def end(self) -> int:
        """End it by SIGTERM, and return its exit code."""
        self.process.terminate()
        code = self.process.wait(120)
        self._note_end()
        return code

    def _note_end(self) -> None:
        self.ledger.with_suffix(".gone").write_text(f"{time.time():.6f}")

    def has_begun(self) -> bool:
        """Tell whether it has handled a message."""
        return self.ledger.exists() and self.ledger.stat().st_size > 0

    def memory(self) -> int:
        """Return the bytes of memory that it uses."""
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0


@attrs.frozen
class Handled:
    """One attempt at a message: its key, its number, when it began and ended, and the result.

    Attributes:
        entry: The name of its entry in the stream; empty in the topic.
        by: The writer of the process, as the log of the lanes names it.
    """

    key: str
    number: int
    began: float
    ended: float
    is_success: bool
    entry: str
    by: str


class Book:
    """Reads the ledgers of all processes, which still grow.

    Attributes:
        successes: The first success of each message, by key and number.
        attempts: How many attempts there were.
        diverted: How many messages were handled in the stream.
        all: All attempts.
    """

    def __init__(self, folder: Path) -> None:
        """Read the ledgers in *folder*."""
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.successes: dict[tuple[str, int], Handled] = {}
        self.attempts = self.diverted = 0
        self.all: list[Handled] = []
        self._files: dict[str, str] = {}

    def look(self) -> int:
        """Read what is new; return how many messages have succeeded."""
        for path in self._folder.glob("*.ledger"):
            with path.open() as file:
                file.seek(self._read.get(path, 0))
                while (line := file.readline()).endswith("\n"):
                    self._files[self._enter(line).by] = path.stem
                    self._read[path] = file.tell()
        return len(self.successes)

    def _enter(self, line: str) -> Handled:
        key, number, began, ended, success, entry, by = line.split()
        entry = entry.replace("-", "")
        one = Handled(key, int(number), float(began), float(ended), success == "1", entry, by)
        self.all.append(one)
        self.attempts += 1
        self.diverted += entry != ""
        known = self.successes.get((one.key, one.number))
        if one.is_success and (known is None or one.ended < known.ended):
            self.successes[one.key, one.number] = one
        return one

    def gone(self) -> dict[str, float]:
        """Return when each process has ended that has handled something, by its writer."""
        ends = {each.stem: float(each.read_text()) for each in self._folder.glob("*.gone")}
        return {by: ends[stem] for by, stem in self._files.items() if stem in ends}

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
        unload: Unloads a topic.
        kinds: What the processes have, in turn: ``subscriber``, ``consumer`` or ``asyncio``.
    """

    url: str
    topic: str
    folder: Path
    facts: tuple[float, ...]
    unload: Callable[[str], None]
    kinds: tuple[str, ...] = ("subscriber",)
    processes: list[Process] = attrs.field(factory=list)
    started: int = 0
    least: dict[int, int] = attrs.field(factory=dict)
    most: dict[int, int] = attrs.field(factory=dict)

    def join(self) -> None:
        """Start one more process."""
        self.started += 1
        ledger, kind = (
            self.folder / f"{self.started}.ledger",
            self.kinds[self.started % len(self.kinds)],
        )
        self.processes.append(Process(self.url, self.topic, ledger, kind, *self.facts))

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

    def measure(self) -> None:
        """Note the memory of each process."""
        for each in self.processes:
            if each.ledger.exists() and (now := each.memory()):
                pid = each.process.pid
                self.least[pid] = min(now, self.least.get(pid, now))
                self.most[pid] = max(now, self.most.get(pid, now))

    def growth(self) -> int:
        """Return by how many bytes the memory of a process has grown at most."""
        return max((self.most[pid] - self.least[pid] for pid in self.most), default=0)

    def faults(self) -> Iterator[Callable[[], object]]:
        """Yield faults of all kinds in turn, for ever."""
        while True:
            yield self.kill
            yield lambda: self.unload(self.topic)
            yield self.leave
            yield lambda: self.unload(f"{self.topic}-{SUBSCRIPTION}-LANES")
            yield self.kill
            yield lambda: self.unload(f"{self.topic}-{SUBSCRIPTION}-LANES-LOG")

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


def consume(client: pr.Client, topic: str, handle: Callable[[Any, Any], None]) -> None:
    """Receive until SIGTERM, and have what fails reconsumed."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with client.subscribe(topic, SUBSCRIPTION, **_OPTIONS) as consumer:
        while not ended.is_set():
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(200)
                try:
                    handle(message, consumer._subscriber)
                except TimeoutError:
                    consumer.reconsume_later_async(message, delay=PAUSE)
                else:
                    consumer.acknowledge(message)


async def consume_on_a_loop(url: str, topic: str, handle: Callable[[Any, Any], None]) -> None:
    """Do the same with several tasks, whose receives are cancelled now and then."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    async def work(consumer: Any) -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(consumer.receive(), 0.05)
                try:
                    handle(message, consumer._inner._subscriber)
                except TimeoutError:
                    await consumer.reconsume_later_async(message, delay=PAUSE)
                else:
                    await consumer.acknowledge(message)

    async with (
        pr.asyncio.Client(url, operation_timeout_seconds=90, logger=_QUIET) as client,
        await client.subscribe(topic, SUBSCRIPTION, **_OPTIONS) as consumer,
    ):
        await asyncio.gather(*(work(consumer) for _ in range(4)))


def first_in(folder: Path) -> float:
    """Return when a process with a ledger in *folder* has called this first."""
    path = folder / "first"
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
    return path.stat().st_mtime


def main() -> None:
    """Handle messages until SIGTERM; each *every*-th key fails between two times."""
    url, topic, path, kind, since, until, every = sys.argv[1:]
    fails_since, fails_until, fails_every = float(since), float(until), int(float(every))
    lock = threading.Lock()
    with (
        Path(path).open("a", buffering=1) as ledger,
        pr.Client(url, operation_timeout_seconds=90, logger=_QUIET) as client,
    ):

        def handle(message: Any, subscriber: Any) -> None:
            began, by = time.time(), subscriber._diverter._writer
            key, number = message.partition_key(), message.data().decode()
            fails = (
                fails_every > 0
                and int(key.partition("-")[2]) % fails_every == 0
                and fails_since <= began - first_in(Path(path).parent) < fails_until
            )
            entry = message.properties().get(LANE_ENTRY, "-").partition(" ")[0]
            with lock:
                facts = (key, number, f"{began:.6f}", f"{time.time():.6f}", int(not fails))
                ledger.write(" ".join(map(str, (*facts, entry, by))) + "\n")
            if fails:
                raise TimeoutError("no answer")

        if kind == "asyncio":
            asyncio.run(consume_on_a_loop(url, topic, handle))
            return
        if kind == "consumer":
            consume(client, topic, handle)
            return
        policy = pr.RetryPolicy(max_attempts=10_000, backoff=pr.Fixed(PAUSE))
        subscriber = client.subscriber(
            topic,
            SUBSCRIPTION,
            lambda message: handle(message, subscriber),
            retry_policy=policy,
            ordering="durable",
            concurrency=4,
        )
        subscriber.run()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    main()
