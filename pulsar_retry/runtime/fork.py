"""Makes clients fail at once in a forked child process.

pulsar-client's threads do not survive a fork: in the child, an acknowledgement returns without
being sent, and a send blocks for ever. Therefore, after a fork, each reference to pulsar-client
that the child has inherited is replaced by an object that raises. Ordinary calls cost nothing
extra.

Nothing of pulsar-client may be destroyed in the child, because its destructors wait for these
threads. Garbage that the child has inherited can have such objects, so it is never collected there.
"""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from typing import Any, NoReturn, TypeVar

from pulsar_retry.errors import ForkedError

Lock = TypeVar("Lock")

_guarded: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()


class _Lost:
    """Replaces a reference to pulsar-client after a fork."""

    def __call__(self, *_: object) -> NoReturn:
        raise ForkedError(
            "this Pulsar client was made before a fork and cannot be used in the child process; "
            "make a client in the child instead"
        )

    __getattr__ = __iter__ = __enter__ = __exit__ = __call__


def guard(owner: Any, *attributes: str) -> None:
    """Replace the *attributes* of *owner* in every child process forked from now on."""
    _guarded[owner] = attributes


def free_in_child(lock: Lock) -> Lock:
    """Return *lock*, which is free in every child process forked from now on.

    Otherwise a lock of a module, which a thread of the parent holds in this moment, is never
    released in the child.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001 - as the standard library does it
    return lock


def keep_for_ever(value: Any) -> None:
    """Prevent the destruction of *value*: in a child its destructor waits for missing threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class _Collecting:
    """Stops the garbage collection while the process forks."""

    def __init__(self) -> None:
        self._forks, self._is_enabled = 0, True

    def stop(self) -> None:
        """Stop it; several threads may fork at a time."""
        if not self._forks:
            self._is_enabled = gc.isenabled()
        self._forks += 1
        gc.disable()

    def resume(self) -> None:
        """Go on in the parent."""
        self._forks -= 1
        if self._is_enabled and not self._forks:
            gc.enable()

    def begin_anew(self) -> None:
        """Go on in the child, with nothing that it has inherited."""
        gc.freeze()
        self._forks = 1
        self.resume()


_collecting = _Collecting()


def _after_fork_in_child() -> None:
    _collecting.begin_anew()
    for owner, attributes in list(_guarded.items()):
        for name in attributes:
            value = getattr(owner, name)
            if value is not None:
                keep_for_ever(value)
                setattr(owner, name, _Lost())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_collecting.stop,
        after_in_parent=_collecting.resume,
        after_in_child=_after_fork_in_child,
    )
