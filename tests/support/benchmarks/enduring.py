"""A consumer in a separate process that settles given numbers of messages, again and again.

``python enduring.py URL TOPIC DOING NAME`` reads a number from each line of its input, settles that
many messages, and prints the time and memory that this took, as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import attrs
import pulsar


@attrs.frozen
class Window:
    """The cost of a window of messages.

    Attributes:
        seconds: How long it took.
        cpu: Seconds of processor time.
        memory: Bytes of memory that the process holds after it.
    """

    seconds: float
    cpu: float
    memory: int


class Enduring:
    """The process; a context manager. Its subscription exists once the context is entered."""

    def __init__(self, url: str, topic: str, doing: str, name: str) -> None:
        command = [sys.executable, __file__, url, topic, doing, name]
        path = os.pathsep.join(each for each in sys.path if each)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"PYTHONPATH": path}
        )

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def settle(self, count: int) -> Window:
        """Settle *count* messages."""
        assert self._process.stdin is not None
        print(count, file=self._process.stdin, flush=True)
        return Window(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def main(url: str, topic: str, doing: str, name: str) -> None:
    """Run the process."""
    from support.benchmarks.loads import CONTESTANTS, QUIET  # noqa: PLC0415 - the parent needs none of it

    kind, settling, options = CONTESTANTS[doing][name]
    client = kind(url, logger=QUIET)
    consumer = client.subscribe(
        topic,
        f"endurance-{os.getpid()}",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        **options,
    )
    settle, finish = settling(client, consumer, f"{topic}-{os.getpid()}")
    print(json.dumps({}), flush=True)  # noqa: T201 - to the parent
    for line in sys.stdin:
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            settle(consumer.receive(60_000))
        finish()
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        took = {
            "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - cpu_began,
            "memory": pages * resource.getpagesize(),
        }
        print(json.dumps(took), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
