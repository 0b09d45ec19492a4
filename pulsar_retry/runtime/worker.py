"""Threads for calls that can block: for some that must not block the caller, or each other."""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

import _pulsar

from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.upstream import error_of

_log = logging.getLogger("pulsar_retry")

_Tasks = SimpleQueue[Callable[[], object] | None]

#: How many calls are made at a time.
_MOST = 16

#: Seconds to wait for calls at least. A broker that answers needs milliseconds.
_LEAST = 1.0


class Worker:
    """Runs tasks one by one on a thread that is created for the first of them. Thread-safe.

    The thread ends with the worker, or when it is closed. It works until the end of the process,
    unlike those of the standard library's executors, which take no task any more when the functions
    of `atexit` are called: these close clients, and what is in flight is handed off then.
    """

    def __init__(self, name: str, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._tasks: _Tasks = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        weakref.finalize(self, self._tasks.put, None).atexit = False

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
            self._tasks.put(self._clock.counted(task))
            return True

    def close(self, timeout: float | None = None) -> None:
        """Take no more tasks, wait for the others, at most *timeout* seconds, and end the thread.

        It does not wait if a task calls it.
        """
        with self._lock:
            self._closed = True
        self._tasks.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout if timeout is None else max(0.0, timeout))


def _run(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
        except ConsumerClosedError:
            _log.debug("a task was too late", exc_info=True)
        except Exception:  # noqa: BLE001 - the next task must run
            _log.exception("a task has an error")
        task = None  # it must not keep its owner alive


def side_by_side(
    calls: Iterable[Callable[[], object]], *, threads: bool = True, until: float = math.inf
) -> None:
    """Call each of *calls*, and return when all have ended.

    pulsar-client waits up to ``operation_timeout_seconds`` for the answer to each close. The
    interpreter waits for the threads before it exits: it must not end while they are in
    pulsar-client.

    Args:
        calls: The functions.
        threads: Whether they may be called on other threads. If not, or if no thread can be
            started, they are called one after the other.
        until: When to wait no more, by the monotonic clock, but a second at least. What has not
            ended by then goes on. At exit it is waited for, because the interpreter does not.

    Raises:
        pulsar.Timeout: a call has not ended in time.
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

    until = max(until, time.monotonic() + _LEAST)
    if not threading.main_thread().is_alive():
        until = math.inf
    helpers = _started(work, min(len(left), _MOST) if threads else 0)
    if not helpers:
        work()
    for helper in helpers:
        helper.join(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))
    if errors:
        raise errors[0]
    if any(helper.is_alive() for helper in helpers):
        raise error_of(_pulsar.Result.Timeout)


def _started(work: Callable[[], None], most: int) -> list[threading.Thread]:
    """Start *most* threads that do *work*, or as many as can be started."""
    helpers = list[threading.Thread]()
    with contextlib.suppress(RuntimeError):  # no thread can be started
        for _ in range(most):
            helper = threading.Thread(target=work, name="pulsar-retry-closing", daemon=False)
            helper.start()
            helpers.append(helper)
    return helpers


def warn_of_greenlets() -> None:
    """Log a warning if a library has replaced the threads of this process by greenlets."""
    library = _thread.start_new_thread.__module__.partition(".")[0]
    if library != _thread.__name__:
        text = (
            "%s has replaced threads: while a call of pulsar-client blocks, nothing else runs, so "
            "nacked messages do not come back in time, and subscribers can stop. Leave threads as "
            "they are, for example by gevent.monkey.patch_all(thread=False)"
        )
        _log.warning(text, library)
