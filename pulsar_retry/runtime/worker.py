"""A thread for calls that can block and must not block the caller."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("pulsar_retry")

_Tasks = SimpleQueue[Callable[[], object] | None]


class Worker:
    """Runs tasks one by one on a thread that is created for the first of them. Thread-safe.

    It works until the end of the process, unlike an executor, which takes no task any more when the
    functions of `atexit` are called: these close clients, and what is in flight is handed off then.
    """

    def __init__(self, name: str, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._tasks: _Tasks = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, task: Callable[[], object]) -> bool:
        """Run *task* soon; return False, without running it, if the worker is closed."""
        with self._lock:
            if self._closed:
                return False
            if self._thread is None:
                thread = threading.Thread(
                    target=_run, args=[self._tasks], name=self._name, daemon=True
                )
                thread.start()  # if it cannot start, a later call may succeed
                self._thread = thread
                weakref.finalize(self, self._tasks.put, None).atexit = False
            self._tasks.put(self._clock.counted(task))
            return True

    def close(self) -> None:
        """Wait for the tasks, unless one of them calls this, and end the thread."""
        with self._lock:
            if not self._closed:
                self._tasks.put(None)
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _run(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
        except ConsumerClosedError:
            _log.debug("a task was too late", exc_info=True)
        except Exception:  # noqa: BLE001 - the next task must run
            _log.exception("a task has an error")
        task = None  # it must not keep its owner alive
