"""Fail fast in a forked child.

pulsar-client's threads do not survive a fork: in the child an acknowledgement returns without
being sent and a send hangs for ever. So after a fork everything that the child inherited and that
leads to pulsar-client is replaced by something whose use raises. This costs nothing per call.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, NoReturn

from pulsar_retry.errors import ForkedError

_guarded: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()


class _Lost:
    """Stands where a way to pulsar-client stood before the fork."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ForkedError(
            "this Pulsar client was made before a fork and cannot be used in the child process; "
            "make a client in the child instead"
        )


def guard(owner: Any, *attributes: str) -> None:
    """Replace the *attributes* of *owner* in every child process that is forked from now on."""
    _guarded[owner] = attributes


def keep_for_ever(value: Any) -> None:
    """Have *value* never destroyed: in a child its destructor waits for threads that are gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _after_fork_in_child() -> None:
    for owner, attributes in list(_guarded.items()):
        for name in attributes:
            value = getattr(owner, name)
            if value is not None:
                keep_for_ever(value)
                setattr(owner, name, _Lost())


os.register_at_fork(after_in_child=_after_fork_in_child)
