"""Wraps handlers: each begins with a claim that all processes know, and suspects run alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any

from pulsar_retry.letters.facts import facts_of
from pulsar_retry.policy.outcomes import Defer
from pulsar_retry.pull.claims.claims import Claims, Wake
from pulsar_retry.pull.engine.guard import AT_EXIT, SLOT, leaving, suspended
from pulsar_retry.pull.engine.ward import Ward
from pulsar_retry.pull.engine.work_queue import Slot, WorkQueue
from pulsar_retry.pull.rules.claims import Record
from pulsar_retry.pull.rules.quarantine import CrashLoop, Quarantine, worker_crashes_of
from pulsar_retry.runtime.clock import Clock

_log = logging.getLogger("pulsar_retry")

#: Something to wait for: it tells whether it has happened, or else calls the function later.
Begin = Callable[[Wake], bool]
Steps = Generator[Begin, bool, bool]


class ClusterGuard:
    """Does what `HandlerGuard` does, with claims that all processes of the subscription share.

    Thread-safe. A suspect is handled alone in its process, and only one suspect of the subscription
    is handled at a time.
    """

    def __init__(
        self,
        quarantine: Quarantine,
        claims: Claims,
        work_queue: WorkQueue,
        clock: Clock,
        *,
        counts_redeliveries: bool,
        ward: Ward | None = None,
    ) -> None:
        """Make a guard; the arguments are as in `HandlerGuard`."""
        self._quarantine = quarantine
        self._claims = claims
        self._work_queue = work_queue
        self._clock = clock
        self._counts_redeliveries = counts_redeliveries
        self._ward = ward or Ward()
        self._queue = Ward()  # of the suspects of this process
        AT_EXIT.add(claims)

    def guarded(self, handler: Callable[[Any], Any], slot: Slot) -> Callable[[Any], Any]:
        """Return *handler* with a check that rejects messages in quarantine; for one worker."""

        def handle(message: Any) -> Any:
            self._top_up()
            key, item = facts_of(message).chain, slot.work
            if self._begins_at_once(message, key):
                with self._inside(slot, key):
                    return handler(message)
            steps = self._steps(message, key)
            try:
                begin = next(steps)
                while True:
                    gate = self._clock.lock()
                    gate.acquire()
                    if not (has_happened := begin(gate.release)):
                        with self._waiting(slot, item, steps):
                            gate.acquire()
                    begin = steps.send(has_happened)
            except StopIteration as end:
                is_alone = end.value
            with self._inside(slot, key, is_alone=is_alone):
                return handler(message)

        return handle

    def guarded_async(
        self, handler: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any], Awaitable[Any]]:
        """Do what `guarded` does, for a handler that is ``async def``."""
        import asyncio  # noqa: PLC0415 - only those need it

        async def handle(message: Any) -> Any:
            key = facts_of(message).chain
            slot, loop = SLOT.get(), asyncio.get_running_loop()
            if self._begins_at_once(message, key):
                with self._inside(slot, key):
                    return await handler(message)
            steps, item = self._steps(message, key), slot.work
            try:
                begin = next(steps)
                while True:
                    gate = asyncio.Event()

                    def wake(gate: asyncio.Event = gate) -> None:
                        self._clock.begin(slot)
                        with contextlib.suppress(RuntimeError):  # the loop has ended
                            loop.call_soon_threadsafe(gate.set)

                    if not (has_happened := begin(wake)):
                        with self._waiting(slot, item, steps):
                            self._clock.end(slot)
                            await gate.wait()
                    begin = steps.send(has_happened)
            except StopIteration as end:
                is_alone = end.value
            with self._inside(slot, key, is_alone=is_alone):
                return await handler(message)

        return handle

    def close(self) -> None:
        """Forget all claims, and make no more. Running handlers go on."""
        self._claims.withdraw()

    def end(self) -> None:
        """Let no handler wait any longer, because the queue is closed, and close the topic."""
        self.close()
        self._ward.empty()
        self._queue.empty()
        self._claims.close()

    @property
    def problems(self) -> list[str]:
        """What is wrong with the claims, in words."""
        return self._claims.problems

    # -- the way of a message ---------------------------------------------------------------------

    def _begins_at_once(self, message: Any, key: str) -> bool:
        """Tell whether the handler need not wait, as usual; it has its claim then.

        Raises:
            CrashLoop: the message is in quarantine.
        """
        if not self._claims.claim_at_once(key):
            return False
        try:
            self._check(message, key, ())
        except CrashLoop:
            self._claims.drop(key)
            raise
        if self._ward.enter_at_once():
            return True
        self._claims.drop(key)
        return False

    def _steps(self, message: Any, key: str) -> Steps:
        """Yield what is to be waited for until the handler may begin.

        Raises:
            CrashLoop: the message is in quarantine.
        """
        claims, ward = self._claims, self._ward
        while True:
            yield partial(claims.claim, key)
            accusers = claims.accusers(key)
            try:
                is_certain = self._check(message, key, accusers)
            except CrashLoop:
                claims.drop(key)
                raise
            if not is_certain:
                claims.drop(key)
                yield claims.look_later
            elif self._quarantine.is_suspect(len(accusers)):
                claims.drop(key)
                text = "%d processes have died with %s in hand: it is handled alone"
                _log.info(text, len(accusers), key)
                if (yield from self._isolate(message, key)):
                    return True
            else:
                if (yield partial(self._enter, key)):
                    return False
                ward.leave()  # it has waited beside a suspect, without a claim

    def _isolate(self, message: Any, key: str) -> Steps:
        """Yield what a suspect waits for; tell whether its handler may begin."""
        claims, ward, queue = self._claims, self._ward, self._queue
        yield partial(self._await, queue)
        yield claims.take_turn
        yield partial(self._await, ward)
        yield partial(claims.isolate, key)
        with contextlib.suppress(CrashLoop):  # it is judged again when it is not alone any more
            if self._check(message, key, claims.accusers(key)):
                return True
        claims.rejoin(self._release)
        return False

    def _check(self, message: Any, key: str, accusers: tuple[Record, ...]) -> bool:
        """Tell whether it is certain that the message is not in quarantine.

        Raises:
            CrashLoop: it certainly is.
        """
        redeliveries = message.redelivery_count() if self._counts_redeliveries else 0
        crashes = worker_crashes_of(message)
        holds = self._quarantine.holds
        if holds(claims=0, worker_crashes=crashes, redeliveries=redeliveries):
            raise CrashLoop
        if not any(each.alone == key for each in accusers):
            return True  # until it has been handled alone, another message may be the cause
        if not holds(claims=len(accusers), worker_crashes=crashes, redeliveries=redeliveries):
            return True
        if not self._claims.is_certain(accusers):
            return False
        raise CrashLoop(key, accusers)

    def _enter(self, key: str, wake: Wake) -> bool:
        if self._ward.enter(alone=False, wake=wake):
            return True
        self._claims.drop(key)
        return False

    @staticmethod
    def _await(ward: Ward, wake: Wake) -> bool:
        return ward.enter(alone=True, wake=wake)

    def _release(self) -> None:
        self._ward.leave()
        self._queue.leave()

    # -- around a handler -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _waiting(self, slot: Slot, item: Any, steps: Steps) -> Iterator[None]:
        """Suspend the lease while a message waits.

        Raises:
            Defer: the queue was closed meanwhile.
        """
        try:
            with suspended(self._work_queue, slot, item):
                yield
        except Defer:
            steps.close()
            raise

    @contextlib.contextmanager
    def _inside(self, slot: Slot, key: str, *, is_alone: bool = False) -> Iterator[None]:
        def leave() -> None:
            self._claims.settle(key)
            if is_alone:
                self._claims.rejoin(self._release)
            else:
                self._ward.leave()

        with leaving(slot, leave):
            yield

    def _top_up(self) -> None:
        """Have more received, so that they can be claimed before a worker is free."""
        if len(self._work_queue.ready) + 1 == self._work_queue.low:
            self._work_queue.notify()
