"""Closes clients in signal handlers and callbacks, and keeps closed ones until the process ends.

Python runs signal handlers on the main thread, between any two instructions. If one of them has
interrupted a method of this package, this method may hold a lock, or have begun a hand-off. Whoever
waits for it in the signal handler waits for ever, or until a time limit. So what a signal handler
closes is then closed on another thread. So is what a callback of a hand-off closes: closing waits
for hand-offs, and a hand-off has not ended before its callbacks have returned.

Closing a client returns slightly before pulsar-client's own thread releases the client. If this
thread is the last one, it destroys the client and the Python functions that the client has, such
as a token supplier. That needs the interpreter's lock. An interpreter that is shutting down (before
Python 3.14) ends the thread instead, and C++ aborts the process: "terminate called without an
active exception". Therefore the clients that were closed last are kept, and at exit they are never
destroyed. A closed client holds about 20 kB, and no thread, connection or file.

The same would happen to pulsar-client's threads that are in a listener of the application: closing
a client waits half a second for them. So at exit, running listeners are waited for.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import pulsar

from pulsar_retry.errors import noted
from pulsar_retry.runtime.fork import keep_for_ever

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("pulsar_retry")

_PACKAGE = __name__.partition(".")[0]

#: How many clients are kept. Half of them are clients of letters. Threads released the clients that
#: were closed earlier long ago.
_MOST_CLIENTS = 128

_closed: deque[Any] = deque(maxlen=_MOST_CLIENTS)

#: The maximum number of seconds to wait for listeners at exit.
_PATIENCE = 30.0

#: Seconds that a thread has to get from a listener, which has ended, into C++.
_GRACE = 0.05

#: The threads that are in a listener.
_listening: set[int] = set()

#: The threads that end hand-offs, and call the callbacks of the application.
_ending: set[int] = set()

#: The thread that closes for signal handlers and callbacks, or did so last.
_last: threading.Thread | None = None


def keep_until_exit(raw: Any) -> None:
    """Keep a closed raw client. Thread-safe."""
    _closed.append(raw)


def waited_for(listener: Callable[P, R]) -> Callable[P, R]:
    """Return a function that does what *listener* does, and is waited for at exit."""

    @functools.wraps(listener, updated=())
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        thread = threading.get_ident()
        _listening.add(thread)
        try:
            return listener(*args, **kwargs)
        finally:
            _listening.discard(thread)

    return call


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Have what callbacks close in this block closed on another thread."""
    thread = threading.get_ident()
    is_outer = thread not in _ending
    _ending.add(thread)
    try:
        yield
    finally:
        if is_outer:
            _ending.discard(thread)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_listening.clear)
    os.register_at_fork(after_in_child=_ending.clear)


@atexit.register
def _keep_all() -> None:
    # Functions registered at exit run in reverse. Modules that close clients import this one first.
    while _closed:
        keep_for_ever(_closed.pop())
    if _listening:
        until = time.monotonic() + _PATIENCE
        while _listening and time.monotonic() < until:
            time.sleep(_GRACE)
        time.sleep(_GRACE)


def closes(method: Callable[P, R | None]) -> Callable[P, R | None]:
    """Have *method* called on another thread by a signal handler or a callback.

    This is so if the signal handler has interrupted this package, or if the callback is called by a
    thread that ends hand-offs. The call then returns None at once. Several such calls run one after
    the other. The interpreter waits for them before it exits.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        is_main = threading.current_thread() is threading.main_thread()
        if threading.get_ident() in _ending or (is_main and _has_interrupted()):
            _begin(functools.partial(method, *args, **kwargs))
            return None
        return method(*args, **kwargs)

    return call


def _begin(close: Callable[[], object]) -> None:
    global _last  # noqa: PLW0603 - a lock would have to be free in signal handlers
    before = _last

    def run() -> None:
        if before is not None:
            before.join()
        try:
            close()
        except pulsar.AlreadyClosed:
            pass
        except pulsar.PulsarException as error:  # nobody else is there to be told
            _log.warning("closing has failed: %s", noted(error))

    thread = threading.Thread(target=run, name="pulsar-retry-closing")
    thread.start()  # if it cannot start, the next one must not wait for it
    _last = thread


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
