"""Closes clients in signal handlers, and keeps closed ones until the process has ended.

Python runs signal handlers on the main thread, between any two instructions. If one of them has
interrupted a method of this package, this method may hold a lock, or have begun a hand-off. Whoever
waits for it in the signal handler waits for ever, or until a time limit. So what a signal handler
closes is then closed on another thread.

Closing a client returns slightly before pulsar-client's own thread releases the client. If this
thread is the last one, it destroys the client and the Python functions that the client has, such
as a token supplier. That needs the interpreter's lock. An interpreter that is shutting down (before
Python 3.14) ends the thread instead, and C++ aborts the process: "terminate called without an
active exception". Therefore the clients that were closed last are kept, and at exit they are never
destroyed. A closed client holds about 20 kB, and no thread, connection or file.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import pulsar

from pulsar_retry.runtime.fork import keep_for_ever

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = __name__.partition(".")[0]

#: How many clients are kept. Half of them are clients of letters. Threads released the clients that
#: were closed earlier long ago.
_MOST_CLIENTS = 128

_closed: deque[Any] = deque(maxlen=_MOST_CLIENTS)

#: The thread that closes for signal handlers, or did so last.
_last: threading.Thread | None = None


def keep_until_exit(raw: Any) -> None:
    """Keep a closed raw client. Thread-safe."""
    _closed.append(raw)


@atexit.register
def _keep_all() -> None:
    # Functions registered at exit run in reverse. Modules that close clients import this one first.
    while _closed:
        keep_for_ever(_closed.pop())


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
    frame, others = inspect.currentframe(), list[FrameType]()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != _PACKAGE:
            others.append(frame)
        elif any(map(_is_handler, others)):
            return True
        else:  # only these are asked for their variables, because a frame then keeps them
            others.clear()
        frame = frame.f_back
    return False


def _is_handler(frame: FrameType) -> bool:
    """Tell whether *frame* is that of a signal handler: it is passed the one that it interrupts."""
    names, rest, _, values = inspect.getargvalues(frame)
    passed = [values.get(name) for name in names]
    passed += values.get(rest, ()) if rest else ()
    return any(isinstance(each, FrameType) and each is frame.f_back for each in passed)
