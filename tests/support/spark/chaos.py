"""Kills Spark's Python workers in the middle of their work. For functions that run in workers.

Spark pickles the functions of a test by reference, but workers can't import tests; `by_value`
solves that.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle

#: Seconds to wait for a condition in a worker: more than any test needs.
_PATIENCE = 150.0


def by_value() -> None:
    """Send this module together with the functions that use it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def pause(at: int, first: Callable[[], None]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow` that passes batches on, and calls *first* once per task.

    It is called before batch number *at* of each task, and only in the task's first attempt.
    """

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        fresh = TaskContext.get().attemptNumber() == 0
        for number, batch in enumerate(batches):
            if fresh and number == at:
                first()
            yield batch

    return passing


def slowed(seconds: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow` that passes batches on, each after a pause."""

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(seconds)
            yield batch

    return passing


def await_file(path: str) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + _PATIENCE
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.02)


def kill_other_workers() -> None:
    """Kill (-9) every Python worker of this Spark except the one that runs this function.

    Daemons, which are children of the JVM, fork the workers.
    """
    jvm = _parent(os.getppid())
    for daemon in _children(jvm):
        for worker in _children(daemon):
            if worker != os.getpid():
                os.kill(worker, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return [pid for pid in pids if _parent(pid) == parent]


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:  # it has ended
        return 0
    return int(stat.rpartition(")")[2].split()[1])
