"""Makes clients fail at once in a forked child process.

pulsar-client's threads do not survive a fork: in the child, an acknowledgement returns without
being sent, and a send blocks for ever. Therefore, after a fork, each reference to pulsar-client
that the child has inherited is replaced by an object that raises. Ordinary calls cost nothing
extra.
"""

from __future__ import annotations

import ctypes
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


def _after_fork_in_child() -> None:
    for owner, attributes in list(_guarded.items()):
        for name in attributes:
            value = getattr(owner, name)
            if value is not None:
                keep_for_ever(value)
                setattr(owner, name, _Lost())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
