"""Signals that ask to end, told to all on an event loop who want to know."""

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
class _Ears:
    """Who listens on one event loop.

    Attributes:
        listeners: Whom to tell.
        before: The handlers that were there.
    """

    listeners: list[Callable[[int], None]] = attrs.Factory(list)
    before: dict[signal.Signals, Any] = attrs.Factory(dict)

    def tell(self, number: int) -> None:
        """Tell all of a signal."""
        for listener in list(self.listeners):
            listener(number)


_ears: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ears] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def asked_by_signals(asked: Callable[[int], None]) -> Iterator[None]:
    """Have *asked* called on the running loop with each SIGTERM and SIGINT.

    On another thread than the main one no signal comes. A loop has one handler for a signal, and
    several subscribers may run on it: the first one sets it, the last one puts the old one back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    ears = _ears.setdefault(loop, _Ears())
    if not ears.listeners:
        for number in SIGNALS:
            ears.before[number] = signal.getsignal(number)
            loop.add_signal_handler(number, ears.tell, number)
    ears.listeners.append(asked)
    try:
        yield
    finally:
        ears.listeners.remove(asked)
        if not ears.listeners:
            for number, handler in ears.before.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # it was Python's
                    signal.signal(number, handler)
