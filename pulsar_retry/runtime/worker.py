"""Threads for calls that can block: for some that must not block the caller, or each other."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("pulsar_retry")

_Tasks = SimpleQueue[Callable[[], object] | None]

#: How many calls are made at a time.
_MOST = 16


class Executor:
    """Runs tasks one by one on a thread of its own. It ends with its owner, or by `shutdown`.

    It works until the end of the process, unlike those of the standard library, which take no task
    any more when the functions of `atexit` are called: these close clients, and what is in flight
    is handed off then.
    """

    def __init__(self, name: str) -> None:
        self._tasks: _Tasks = SimpleQueue()
        self._thread = threading.Thread(target=_run, args=[self._tasks], name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, task: Callable[[], object]) -> None:
        """Run *task* after those before it."""
        self._tasks.put(task)

    def shutdown(self) -> None:
        """Wait for the tasks, unless one of them calls this, and end the thread."""
        self._tasks.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()


class Worker:
    """Runs tasks one by one on a thread that is created for the first of them. Thread-safe."""

    def __init__(self, name: str, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._executor: Executor | None = None
        self._closed = False

    def submit(self, task: Callable[[], object]) -> bool:
        """Run *task* soon; return False, without running it, if the worker is closed."""
        with self._lock:
            if self._closed:
                return False
            if self._executor is None:
                self._executor = Executor(self._name)
            self._executor.submit(self._clock.counted(task))
            return True

    def close(self) -> None:
        """Wait for the tasks, unless one of them calls this, and end the thread."""
        with self._lock:
            self._closed = True
            executor = self._executor
        if executor is not None:
            executor.shutdown()


def _run(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
        except ConsumerClosedError:
            _log.debug("a task was too late", exc_info=True)
        except Exception:  # noqa: BLE001 - the next task must run
            _log.exception("a task has an error")
        task = None  # it must not keep its owner alive


def side_by_side(calls: Iterable[Callable[[], object]], *, threads: bool = True) -> None:
    """Call each of *calls*, and return when all have ended.

    pulsar-client waits up to ``operation_timeout_seconds`` for the answer to each close. The
    interpreter waits for the threads before it exits: it must not end while they are in
    pulsar-client.

    Args:
        calls: The functions.
        threads: Whether they may be called on other threads. If not, or if no thread can be
            started, they are called one after the other.

    Raises:
        Exception: the first error of a call. The other functions are called nevertheless.
    """
    left, errors = deque(calls), list[Exception]()

    def work() -> None:
        with contextlib.suppress(IndexError):  # none is left
            while True:
                call = left.popleft()
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - the caller gets it
                    errors.append(error)

    helpers = list[threading.Thread]()
    for _ in range(min(len(left), _MOST) - 1 if threads else 0):
        helper = threading.Thread(target=work, name="pulsar-retry-closing", daemon=False)
        try:
            helper.start()
        except RuntimeError:  # no thread can be started
            break
        helpers.append(helper)
    work()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
