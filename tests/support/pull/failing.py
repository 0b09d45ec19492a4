"""Handlers that fail in all ways, each named by the payload, in every worker form."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulsar_retry as pr


class DeclinedError(Exception):
    """An error that can be pickled and not be unpickled."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"declined: {code}")
        self.code = code


class RefusedError(DeclinedError):
    """One that the policy dead-letters at once."""


class StaleError(DeclinedError):
    """One that the policy drops."""


class LockedError(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return f"the lock is {'taken' if self.lock.locked() else 'free'}"


class RefusedLockError(LockedError):
    """One that the policy dead-letters at once."""


class Invalid(pr.Reject):
    """An outcome that cannot be unpickled."""

    def __init__(self, *, field: str) -> None:
        super().__init__(f"invalid-{field}")


class Unshowable(BaseException):
    """An error that has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class StatusError(Exception):
    """An error of an HTTP client."""

    def __init__(self, status: int, *, response: Any = None) -> None:
        super().__init__("it answered")
        self.status = status
        self.response = response


@dataclass(frozen=True)
class FrozenError(Exception):
    """An error whose attributes cannot be set."""

    code: int


class DelegatingError(Exception):
    """An error that looks for its attributes where there is nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.response, name)  # this looks for `response` in the same way


def own(name: str) -> Exception:
    """Return an error whose class has made an attribute that cannot be read."""

    def read(_: object) -> Any:
        raise RuntimeError("not here")

    return type("OwnError", (Exception,), {name: property(read), "__module__": __name__})(name)


def raise_own(name: str) -> None:
    """Raise such an error."""
    raise own(name)


def caused_by_own(name: str) -> None:
    """Raise an error that such an error has caused."""
    raise RuntimeError("while it was charged") from own(name)


def caused_by_many() -> None:
    """Raise an error at the end of a long chain of causes."""
    error: Exception = ValueError("no amount")
    for number in range(2000):
        error, cause = ConnectionError(f"attempt {number}"), error
        error.__cause__ = cause
    raise error


def badly_noted() -> None:
    """Raise an error whose notes are no list."""
    error = ValueError("no amount")
    error.__notes__ = 3  # type: ignore[assignment]
    raise error


def raise_(error: BaseException) -> None:
    """Raise *error*."""
    raise error


def of_c() -> None:
    """Raise an error that is made in C."""
    b"\xff".decode()


def with_cause() -> None:
    """Raise an error whose cause the policy lists."""
    try:
        raise_(RefusedError(code=7))
    except RefusedError as error:
        raise RuntimeError("while it was charged") from error


def in_context() -> None:
    """Raise an outcome while an error is handled."""
    try:
        raise_(LockedError())
    except LockedError:
        raise pr.Reject("locked-out")  # noqa: B904 - the context is the point


def group() -> None:
    """Raise a group with a member that the policy lists."""
    raise ExceptionGroup("two", [ValueError("one"), RefusedLockError()])


def local() -> None:
    """Raise an error of a class that no other process can import."""

    class LocalError(RefusedError):
        pass

    raise LocalError(code=8)


def noted() -> None:
    """Raise an error with a note."""
    error = ValueError("no amount")
    error.add_note("of the third line")
    raise error


def circle() -> None:
    """Raise an error that is the cause of its own cause."""
    first, second = LockedError(), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


#: What each payload does.
WAYS: dict[bytes, Callable[[], Any]] = {
    b"plain": lambda: raise_(ValueError("no amount")),
    b"of C": of_c,
    b"keyword-only": lambda: raise_(DeclinedError(code=4)),
    b"keyword-only, listed": lambda: raise_(RefusedError(code=5)),
    b"keyword-only, dropped": lambda: raise_(StaleError(code=6)),
    b"with a lock": lambda: raise_(LockedError()),
    b"with a lock, listed": lambda: raise_(RefusedLockError()),
    b"outcome": lambda: raise_(Invalid(field="amount")),
    b"returned": lambda: Invalid(field="sum"),
    b"returned badly": lambda: pr.Defer,
    b"status": lambda: raise_(StatusError(418, response=threading.Lock())),
    b"cause": with_cause,
    b"context": in_context,
    b"group": group,
    b"local": local,
    b"noted": noted,
    b"circle": circle,
    b"frozen": lambda: raise_(FrozenError(9)),
    b"cancelled": lambda: raise_(asyncio.CancelledError("by hand")),
    b"generator exit": lambda: raise_(GeneratorExit("it ends")),
    b"unshowable": lambda: raise_(Unshowable()),
    b"delegating": lambda: raise_(DelegatingError("nobody has answered")),
    b"badly noted": badly_noted,
    b"many causes": caused_by_many,
    **{
        f"own {name}".encode(): partial(raise_own, name)
        for name in ("args", "__dict__", "__cause__", "__traceback__", "with_traceback")
    },
    b"cause with its own": partial(caused_by_own, "__dict__"),
    b"long": lambda: raise_(ValueError("long " * 100_000)),
    b"no text": lambda: raise_(ValueError("\udcff\xff \N{SNOWMAN}")),
    b"no text, keyword-only": lambda: raise_(StatusError(500, response=lambda: "\udcff")),
    b"properties": lambda: raise_(ValueError("whatever they are")),
}

POLICY = pr.RetryPolicy(
    max_attempts=2,
    backoff="immediate",
    dead_letter_on=(RefusedError, RefusedLockError),
    drop_on=StaleError,
)


def handle(message: Any) -> Any:
    """Do what the payload says."""
    return WAYS[message.data()]()


async def handle_async(message: Any) -> Any:
    """Do what the payload says."""
    await asyncio.sleep(0)
    return WAYS[message.data()]()
