"""A thread for calls that can block and must not block the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pulsar_retry.runtime.clock import SYSTEM, Clock


class Worker:
    """Runs tasks one by one on a thread that is created for the first of them. Thread-safe."""

    def __init__(self, name: str, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(self, task: Callable[[], object]) -> bool:
        """Run *task* soon; return False, without running it, if the worker is closed."""
        with self._lock:
            if self._closed:
                return False
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, self._name)
            self._executor.submit(self._clock.counted(task))
            return True

    def close(self) -> None:
        """Wait for the tasks and end the thread."""
        with self._lock:
            self._closed = True
            executor = self._executor
        if executor is not None:
            executor.shutdown()
