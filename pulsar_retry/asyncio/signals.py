"""Passes signals that ask the process to end to all listeners on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from pulsar_retry.pull.signals import SIGNALS


@attrs.define
class _Listeners:
    """The listeners on one event loop.

    Attributes:
        listeners: The functions to call.
        before: The previous signal handlers.
    """

    listeners: list[Callable[[int], None]] = attrs.Factory(list)
    before: dict[signal.Signals, Any] = attrs.Factory(dict)

    def tell(self, number: int) -> None:
        """Call all listeners with a signal's number."""
        for listener in list(self.listeners):
            listener(number)


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Listeners] = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def asked_by_signals(asked: Callable[[int], None]) -> Iterator[None]:
    """Have *asked* called on the running loop with each SIGTERM and SIGINT.

    Signals arrive only on the main thread. A loop has one handler for each signal, but several
    subscribers can run on it: the first one sets the handler, the last one restores the old one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    of_loop = _by_loop.setdefault(loop, _Listeners())
    if not of_loop.listeners:
        for number in SIGNALS:
            of_loop.before[number] = signal.getsignal(number)
            _handle(loop, number, of_loop.tell)
    of_loop.listeners.append(asked)
    try:
        yield
    finally:
        of_loop.listeners.remove(asked)
        if not of_loop.listeners:
            for number, handler in of_loop.before.items():
                with contextlib.suppress(NotImplementedError):  # as in `_handle`
                    loop.remove_signal_handler(number)
                if handler is not None:  # None: the old handler was not set from Python
                    signal.signal(number, handler)


def _handle(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, told: Callable[[int], None]
) -> None:
    """Have *told* called on *loop* with each signal of this number."""
    try:
        loop.add_signal_handler(number, told, number)
    except NotImplementedError:  # on Windows, whose loop wakes up for Python's own handlers
        signal.signal(number, lambda got, _: loop.call_soon_threadsafe(told, got))
