"""Wraps handlers: messages in quarantine are rejected, and suspects are handled alone."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

from pulsar_retry.letters.facts import facts_of
from pulsar_retry.policy.outcomes import Defer
from pulsar_retry.pull.engine.ward import Ward
from pulsar_retry.pull.engine.work_queue import Slot, WorkQueue
from pulsar_retry.pull.rules.claims import TopicClaims
from pulsar_retry.pull.rules.quarantine import CrashLoop, Quarantine, worker_crashes_of
from pulsar_retry.runtime.clock import Clock

#: The slot of the current worker on an event loop.
SLOT: ContextVar[Slot] = ContextVar("SLOT")


class HandlerGuard:
    """Keeps messages in quarantine away from a subscriber's handlers. Thread-safe.

    With a store, a message is claimed while it is handled, and a suspect is handled alone. A claim
    ends with its lease. All claims end when the subscriber is to stop: if the process is killed
    after that, its messages are not the reason.
    """

    def __init__(
        self,
        quarantine: Quarantine,
        work_queue: WorkQueue,
        clock: Clock,
        *,
        counts_redeliveries: bool,
        ward: Ward | None = None,
    ) -> None:
        """Make a guard.

        Args:
            quarantine: The rules of the quarantine.
            work_queue: Where the messages come from.
            clock: Gives the locks that waiting threads wait on.
            counts_redeliveries: Whether redeliveries by the broker count for the quarantine. They
                do if retries use letters: a redelivery is then not a retry.
            ward: Where suspects are alone, if several guards share it.
        """
        self._quarantine = quarantine
        store = quarantine.store
        self._store = None if isinstance(store, TopicClaims) else store  # for a `ClusterGuard`
        self._work_queue = work_queue
        self._clock = clock
        self._counts_redeliveries = counts_redeliveries
        self._ward = ward or Ward()
        self._lock = threading.Lock()
        self._claimed: Counter[str] = Counter()
        self._is_closed = False
        AT_EXIT.add(self)

    def guarded(self, handler: Callable[[Any], Any], slot: Slot) -> Callable[[Any], Any]:
        """Return *handler* with a check that rejects messages in quarantine; for one worker."""

        def handle(message: Any) -> Any:
            if self._store is None:
                self._check(message, 0)
                return handler(message)
            key, claims = self._begin(message)
            gate = self._clock.lock()
            gate.acquire()
            if not self._is_let_in(claims, gate.release):
                with self._waiting(slot, key, claims):
                    gate.acquire()
            with self._inside(slot, key):
                return handler(message)

        return handle

    def guarded_async(
        self, handler: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any], Awaitable[Any]]:
        """Do what `guarded` does, for a handler that is ``async def``."""
        import asyncio  # noqa: PLC0415 - only those need it

        async def handle(message: Any) -> Any:
            if self._store is None:
                self._check(message, 0)
                return await handler(message)
            key, claims = self._begin(message)
            slot, gate, loop = SLOT.get(), asyncio.Event(), asyncio.get_running_loop()

            def wake() -> None:
                self._clock.begin(slot)
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(gate.set)

            if not self._is_let_in(claims, wake):
                with self._waiting(slot, key, claims):
                    self._clock.end(slot)
                    await gate.wait()
            with self._inside(slot, key):
                return await handler(message)

        return handle

    def close(self) -> None:
        """Forget all claims, and make no more. Running handlers go on."""
        with self._lock:
            self._is_closed = True
            keys = list(self._claimed)
            self._claimed.clear()
        for key in keys:
            self._settle(key)

    def end(self) -> None:
        """Let no handler wait any longer, because the queue is closed."""
        self.close()
        self._ward.empty()

    def _begin(self, message: Any) -> tuple[str, int]:
        """Claim a message; return its key and how many earlier claims were not settled.

        Raises:
            CrashLoop: the message is in quarantine. Its earlier claims stay until its dead letter
                is stored, because another message may end the process before.
        """
        key = facts_of(message).key
        claims = self._claim(key)
        try:
            self._check(message, claims)
        except CrashLoop as error:
            self._take_back(key, claims)
            error.forget = partial(self._settle, key)
            raise
        return key, claims

    def _check(self, message: Any, claims: int) -> None:
        crashes = worker_crashes_of(message)
        if self._quarantine.holds(
            claims=claims,
            worker_crashes=crashes,
            redeliveries=message.redelivery_count() if self._counts_redeliveries else 0,
        ):
            raise CrashLoop(crashes=max(claims, crashes))

    def _is_let_in(self, claims: int, wake: Callable[[], object]) -> bool:
        return self._ward.enter(alone=self._quarantine.is_suspect(claims), wake=wake)

    @contextlib.contextmanager
    def _waiting(self, slot: Slot, key: str, claims: int) -> Iterator[None]:
        """Suspend the lease and the claim while a message waits to be let in.

        Raises:
            Defer: the queue was closed meanwhile.
        """
        with suspended(self._work_queue, slot, slot.work):
            self._take_back(key, claims)
            yield
        self._claim(key)

    @contextlib.contextmanager
    def _inside(self, slot: Slot, key: str) -> Iterator[None]:
        def leave() -> None:
            self._unclaim(key)
            self._ward.leave()

        with leaving(slot, leave):
            yield

    def _claim(self, key: str) -> int:
        store = self._store
        with self._lock:
            if self._is_closed or store is None:
                return 0
            self._claimed[key] += 1
            if self._claimed[key] > 1:
                return 0  # this process has already claimed it, for another delivery
        return store.claim(key)

    def _take_back(self, key: str, claims: int) -> None:
        """Take a claim back, because no handler begins; the earlier *claims* stay."""
        self._unclaim(key)
        if self._store is not None:
            for _ in range(claims):  # `_unclaim` has settled these, too
                self._store.claim(key)

    def _unclaim(self, key: str) -> None:
        with self._lock:
            if key not in self._claimed:
                return
            self._claimed[key] -= 1
            if self._claimed[key]:
                return
            del self._claimed[key]
        self._settle(key)

    def _settle(self, key: str) -> None:
        if self._store is not None:
            self._store.settle(key)


@contextlib.contextmanager
def suspended(work_queue: WorkQueue, slot: Slot, item: Any) -> Iterator[None]:
    """Suspend the lease of *item*, the message of *slot*, while it waits.

    Raises:
        Defer: the queue was closed meanwhile.
    """
    slot.work = None
    yield
    slot.work = item
    if work_queue.closed and item is not None:
        slot.expire(item, interrupts=False)  # no handler has begun it: it is redelivered
        raise Defer(0)


@contextlib.contextmanager
def leaving(slot: Slot, leave: Callable[[], object]) -> Iterator[None]:
    """Call *leave* once: when the handler ends, or when its lease does."""
    has_left = threading.Lock()

    def leave_once() -> None:
        if has_left.acquire(blocking=False):
            leave()

    slot.leave = leave_once
    try:
        yield
    finally:
        slot.leave = None
        leave_once()


class _Closable(Protocol):
    def close(self) -> None: ...


#: What forgets its claims when the process ends normally.
AT_EXIT: weakref.WeakSet[_Closable] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # the claims of a parent are not those of a child
    os.register_at_fork(after_in_child=AT_EXIT.clear)


@atexit.register
def _close_all() -> None:
    for each in list(AT_EXIT):
        with contextlib.suppress(Exception):
            each.close()
