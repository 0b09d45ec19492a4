"""Listens to signals that ask the process to end, and decides what several of them ask for."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from pulsar_retry.policy.checks import Duration
from pulsar_retry.pull.report import StopMode

#: The signals that ask a process to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Two SIGINT within these seconds count as one Ctrl-C: the terminal and a parent both send it.
_SAME_CTRL_C = 0.2

#: Seconds between two checks for a signal, or for the end. Python runs signal handlers on the main
#: thread. A signal that arrives just before that thread blocks does not wake it; on a busy machine
#: this is not rare.
CHECK_INTERVAL = 0.1

_log = logging.getLogger("pulsar_retry")


class Requests:
    """Decides what the signals of a process ask for. Not thread-safe.

    The first signal asks to stop. Only a second Ctrl-C asks to abandon what is in hand. A second
    SIGTERM does not, because a supervisor may send it several times, or both to the process and to
    its group.
    """

    def __init__(
        self,
        ask: Callable[[StopMode, Duration], object],
        mode: StopMode,
        timeout: Duration,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Decide for one subscriber, which *ask* stops, at first with *mode* and *timeout*."""
        self._ask, self._mode, self._timeout = ask, mode, timeout
        self._now = now
        self._has_begun = False
        self._interrupted_at: float | None = None

    def told(self, number: int) -> None:
        """Take a signal."""
        is_first, self._has_begun = not self._has_begun, True
        now, before = self._now(), self._interrupted_at
        if number == signal.SIGINT and before is None:
            self._interrupted_at = now
        if is_first:
            self._ask(self._mode, self._timeout)
        elif number != signal.SIGINT:
            _log.warning("SIGTERM again: still stopping; the messages in hand are not abandoned")
        elif before is not None and now - before > _SAME_CTRL_C:
            _log.warning(
                "SIGINT again: the messages in hand are abandoned, and will be redelivered"
            )
            self._ask("abandon", 0)


_listeners: list[Callable[[int], object]] = []
_handlers_before: dict[signal.Signals, Any] = {}


@contextlib.contextmanager
def listening(told: Callable[[int], object]) -> Iterator[None]:
    """Have *told* called with the number of each SIGTERM and SIGINT, inside of a signal handler.

    Only the main thread can listen; elsewhere *told* is not called. Several can listen at a time,
    such as the subscribers of an event loop. The last one to end restores the earlier handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _listen(told)
    try:
        yield
    finally:
        _listeners.remove(told)
        if not _listeners:
            _restore(SIGNALS)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block the signals on this thread, and in processes that it starts until they `ignore` them.

    A supervisor or a terminal may send them to the whole group.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker  # few need it

    resource_tracker.ensure_running()  # as it starts, it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Have the signals do nothing from now on in this process, but not in those that it starts.

    These would inherit SIG_IGN, and a mask.
    """
    _listen(lambda _: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _listen(told: Callable[[int], object]) -> None:
    if not _listeners:
        _handlers_before.update({each: signal.signal(each, _heard) for each in SIGNALS})
    _listeners.append(told)


def _restore(numbers: Iterable[signal.Signals]) -> None:
    for number in numbers:
        if (handler := _handlers_before[number]) is not None:  # None: it was not set from Python
            signal.signal(number, handler)


def _leave_to_the_parent() -> None:
    # Otherwise a signal would not end a child process that a handler has forked.
    _restore(each for each in _handlers_before if signal.getsignal(each) is _heard)
    _listeners.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _heard(number: int, _: object) -> None:
    for told in _listeners:
        told(number)


@contextlib.contextmanager
def awaiting_signals(ended: threading.Event) -> Iterator[Callable[[], int | None]]:
    """Yield a function that waits for SIGTERM or SIGINT, and returns the number of the signal.

    The function returns None when *ended* is set. Outside of the main thread, it receives no
    signal.
    """
    queue: SimpleQueue[int] = SimpleQueue()  # a signal handler may call its `put`

    def next_request() -> int | None:
        while not ended.is_set():
            with contextlib.suppress(Empty):
                return queue.get(timeout=CHECK_INTERVAL)
        return None

    with listening(queue.put):
        yield next_request
