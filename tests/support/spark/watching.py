"""The processor time and memory of Spark's processes: the JVM and its Python workers. Linux."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

_EVERY = 0.2  # seconds; the time that a process takes after the last check is not counted
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Family:
    """A process and its descendants, checked at intervals.

    Attributes:
        head: The most bytes of memory that the process itself has held since `forget`.
        largest: The same for the largest of its descendants.
    """

    def __init__(self, pid: int) -> None:
        self.head = self.largest = 0
        self._pid = pid
        self._cpu: dict[int, float] = {}
        self._total = 0.0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._watcher.join()

    def forget(self) -> None:
        """Reset the figures of memory."""
        self.head = self.largest = 0

    def cpu(self) -> float:
        """Return the seconds of processor time that all of them have taken, ended ones too."""
        with self._lock:
            self._look()
            return self._total

    def _watch(self) -> None:
        while not self._end.wait(_EVERY):
            with self._lock:
                self._look()

    def _look(self) -> None:
        for pid in tree(self._pid):
            with suppress(OSError):  # it has ended
                ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                cpu = sum(map(int, ticks)) / _TICKS
                self._total += max(0.0, cpu - self._cpu.get(pid, 0.0))
                self._cpu[pid] = cpu
                if pid == self._pid:
                    self.head = max(self.head, pages * _PAGE)
                else:
                    self.largest = max(self.largest, pages * _PAGE)


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from tree(int(child))
