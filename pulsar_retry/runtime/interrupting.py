"""Closes on another thread what a signal handler closes while it is in use.

Python runs signal handlers on the main thread, between any two instructions. If one of them has
interrupted a method of this package, this method may hold a lock, or have begun a hand-off. Whoever
waits for it in the signal handler waits for ever, or until a time limit.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

import pulsar

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = __name__.partition(".")[0]

#: The thread that closes for signal handlers, or did so last.
_last: threading.Thread | None = None


def closes(method: Callable[P, R | None]) -> Callable[P, R | None]:
    """Have *method* called on another thread if a signal handler has interrupted this package.

    The call then returns None at once. Several such calls run one after the other. The interpreter
    waits for them before it exits.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        if threading.current_thread() is not threading.main_thread() or not _has_interrupted():
            return method(*args, **kwargs)
        _begin(functools.partial(method, *args, **kwargs))
        return None

    return call


def _begin(close: Callable[[], object]) -> None:
    global _last  # noqa: PLW0603 - signal handlers have one thread
    before = _last

    def run() -> None:
        if before is not None:
            before.join()
        with contextlib.suppress(pulsar.PulsarException):  # nobody is there to be told
            close()

    _last = threading.Thread(target=run, name="pulsar-retry-closing")
    _last.start()


def _has_interrupted() -> bool:
    """Tell whether the caller runs in a signal handler that has interrupted this package."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - there is no other way
    is_interrupted = False
    while frame is not None:
        if is_interrupted:
            if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
                return True
        else:
            is_interrupted = _is_handler(frame)
        frame = frame.f_back
    return False


def _is_handler(frame: FrameType) -> bool:
    """Tell whether *frame* is that of a signal handler: it is passed the one that it interrupts."""
    names, rest, _, values = inspect.getargvalues(frame)
    passed = [values.get(name) for name in names]
    passed += values.get(rest, ()) if rest else ()
    return any(isinstance(each, FrameType) and each is frame.f_back for each in passed)
