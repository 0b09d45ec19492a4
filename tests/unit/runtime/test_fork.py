"""In a forked child everything inherited fails fast instead of hanging."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_retry.consumer.handoff import sending
from pulsar_retry.errors import ForkedError
from pulsar_retry.observe import serving
from pulsar_retry.pull.signals import SIGNALS, listening
from pulsar_retry.runtime import fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


class Handle:
    """Stands for pulsar-client's object."""

    def send(self) -> str:
        """Do what would hang in a child."""
        return "sent"


class Owner:
    """Something of ours that leads to pulsar-client."""

    def __init__(self) -> None:
        self.handle = Handle()
        self.later: Handle | None = None
        self.name = "orders"


def in_child(check: Callable[[], bool]) -> bool:
    """Tell whether *check* is true in a forked child."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; this child calls no lock of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def fails_forked(owner: Owner) -> bool:
    """Tell whether using *owner* raises ForkedError and says what to do instead."""
    try:
        owner.handle.send()
    except ForkedError as error:
        return "make a client in the child" in str(error)
    return False


@pytest.fixture
def owner() -> Owner:
    """Return a guarded owner."""
    owner = Owner()
    fork.guard(owner, "handle", "later")
    return owner


def test_a_guarded_attribute_fails_in_the_child(owner: Owner) -> None:
    """The first use raises, whatever it is."""
    assert in_child(lambda: fails_forked(owner))


def test_a_grandchild_fails_too(owner: Owner) -> None:
    """A fork of a fork is no way back."""
    assert in_child(lambda: in_child(lambda: fails_forked(owner)))


def test_all_else_is_as_before(owner: Owner) -> None:
    """In the child what was not open stays None, and settings can be read; the parent goes on."""
    assert in_child(lambda: (owner.later, owner.name) == (None, "orders"))
    assert "sent" == owner.handle.send()


@pytest.mark.usefixtures("owner")
def test_what_the_child_makes_itself_works() -> None:
    """The guard is about what was inherited."""

    def fresh_works() -> bool:
        fresh = Owner()
        fork.guard(fresh, "handle", "later")
        return fresh.handle.send() == "sent"

    assert in_child(fresh_works)


@pytest.mark.parametrize("collects", [True, False])
def test_inherited_garbage_is_not_destroyed_in_the_child(*, collects: bool) -> None:
    """Garbage can have pulsar-client's objects. All else about the collection is as before."""
    died = list[bool]()

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            died.append(True)

    def nothing_dies() -> bool:
        gc.collect()
        return not died and gc.isenabled() == collects

    def garbage_of_its_own_dies() -> bool:
        Garbage()
        gc.collect()
        return died == [True]

    gc.disable()  # not before the fork
    try:
        Garbage()
        if collects:
            gc.enable()
        assert in_child(nothing_dies)
        assert gc.isenabled() == collects
        assert in_child(garbage_of_its_own_dies)
    finally:
        gc.enable()
    gc.collect()
    assert [True] == died  # in the parent it is freed as usual


def test_a_handle_is_not_destroyed_in_the_child(owner: Owner) -> None:
    """A destructor would wait for threads that are not there."""
    handle = weakref.ref(owner.handle)

    def still_there() -> bool:
        gc.collect()
        return handle() is not None

    assert in_child(still_there)


@pytest.mark.parametrize(
    "lock",
    [sending._guard, serving._registering],
    ids=["future", "serving"],
)
def test_a_lock_of_a_module_is_free_in_the_child(lock: Any) -> None:
    """Whatever another thread does in the moment of the fork, nothing hangs in the child."""
    held, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            ends.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        assert in_child(lambda: lock.acquire(timeout=5))
    finally:
        ends.set()
        holder.join()


def test_signals_end_the_child() -> None:
    """A child that a handler forks ends as it would without a subscriber, not only by SIGKILL."""
    before = [signal.getsignal(each) for each in SIGNALS]

    def is_restored() -> bool:
        return before == [signal.getsignal(each) for each in SIGNALS]

    with listening(lambda _: None):
        assert in_child(is_restored)
        mine = signal.signal(signal.SIGTERM, lambda *_: None)
        assert in_child(lambda: signal.getsignal(signal.SIGTERM) not in (mine, before[0]))
        signal.signal(signal.SIGTERM, mine)
    assert is_restored()


def test_guarding_keeps_nothing_alive() -> None:
    """A consumer that is dropped goes, guarded or not."""
    owner = Owner()
    fork.guard(owner, "handle")
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
