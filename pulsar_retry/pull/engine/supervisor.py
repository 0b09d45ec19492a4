"""Replaces workers that hang or have died, up to a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from pulsar_retry.errors import WorkersLostError
from pulsar_retry.pull.engine.hand import Hand, Held, Slot
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.settings import Lease

_log = logging.getLogger("pulsar_retry")

#: Seconds that a handler has to end after it was interrupted.
_GRACE = 5.0

#: Seconds without an answer after which an event loop counts as blocked.
_SILENT = 5.0

#: If the loop is blocked for these seconds plus the lease's `max_total`, the subscription ends.
_PATIENCE = 5.0

#: Seconds after which a blocked event loop is logged as an error.
_LOG_BLOCKED_AFTER = 60.0

#: The lowest limit of replaced workers, if no limit is set.
LEAST_CAP = 32


class Workers(Protocol):
    """The workers of a subscriber."""

    def replace(self, slot: Slot) -> None:
        """Replace the worker of *slot* by another one."""

    def dead(self) -> list[tuple[Slot, BaseException]]:
        """Return workers whose thread has ended with an error, and forget them."""

    def lost(self) -> BaseException | None:
        """Return the error that has stopped all workers; None if they can continue."""

    def ask(self, answer: Callable[[], None]) -> bool:
        """Have *answer* called on the event loop of the workers; tell whether they have one."""


class Supervisor:
    """Replaces the workers of one subscriber that hang or have died.

    Only `abandoned` and `problems` may be called from any thread.
    """

    def __init__(
        self,
        workers: Workers,
        hand: Hand,
        settler: Settler,
        *,
        lease: Lease,
        concurrency: int,
    ) -> None:
        self._workers = workers
        self._hand = hand
        self._settler = settler
        self._cap = lease.max_abandoned or max(LEAST_CAP, concurrency)
        self._patience = lease.max_total + _PATIENCE
        self._late_since: dict[Slot, float] = {}
        self._abandoned: list[Slot] = []
        self._deaths = 0
        self._asked_at: float | None = None
        self._silent = 0.0
        self._warn_at = _SILENT

    def look(self, now: float) -> None:
        """Replace workers that hang or have died; end the subscription if that does not help."""
        if self._hand.closed:
            return
        self._abandoned = [slot for slot in self._abandoned if slot.work is not None]
        self._look_at_handlers(now)
        self._replace_dead_workers()
        self._look_at_the_loop()
        if (error := self._workers.lost()) is not None:
            self._end(f"the event loop of the handlers has ended ({error!r})", error)

    def abandoned(self) -> int:
        """Return how many handlers still run although their lease has expired. Thread-safe."""
        slots = [*self._abandoned, *self._hand.slots]
        return sum(slot.work is not None and slot.work is slot.expired for slot in slots)

    def problems(self) -> list[str]:
        """Return the current problems, in words. Thread-safe."""
        found = []
        if count := self.abandoned():
            found.append(
                f"{count} handlers have not returned after their lease (at most {self._cap} may)"
            )
        if self._silent >= _SILENT:
            found.append(f"a handler has blocked the event loop for {self._silent:.0f} s")
        return found

    def _look_at_handlers(self, now: float) -> None:
        late = {}
        for slot in list(self._hand.slots):
            if slot.work is None or slot.work is not slot.expired:
                continue
            since = late[slot] = self._late_since.get(slot, now)
            if slot.interrupt is not None and now - since < _GRACE:
                continue
            if len(self._abandoned) >= self._cap:
                self._end(f"more than {self._cap} handlers have not returned after their lease")
                return
            if slot.retire():
                del late[slot]
                self._abandoned.append(slot)
                text = (
                    "a handler has not returned after its lease, and its worker is replaced (%d of "
                    "at most %d)"
                )
                _log.warning(text, len(self._abandoned), self._cap, extra=self._facts())
                self._workers.replace(slot)
        self._late_since = late

    def _replace_dead_workers(self) -> None:
        """Replace dead workers and redeliver their messages; too many end the subscription."""
        for slot, error in self._workers.dead():
            self._deaths += 1
            _log.error("a worker has died and is replaced", exc_info=error, extra=self._facts())
            if (item := slot.work) is not None and slot.may_settle(item):
                self._settler.come_back(Held.of(item), error)
            if self._deaths > self._cap:
                self._end(f"more than {self._cap} workers have died", error)
                return
            self._workers.replace(slot)

    def _look_at_the_loop(self) -> None:
        now = time.monotonic()  # the loop is blocked in real time
        if self._asked_at is not None:
            self._silent = now - self._asked_at
            if self._silent >= self._warn_at:
                self._warn_at *= 2
                level = logging.WARNING if self._silent < _LOG_BLOCKED_AFTER else logging.ERROR
                text = (
                    "a handler has blocked the event loop for %.0f s, and no other message is "
                    "handled: run blocking code with asyncio.to_thread, or use a handler that is "
                    "def"
                )
                _log.log(level, text, self._silent, extra=self._facts())
            if self._silent >= self._patience:
                self._end(f"a handler has blocked the event loop for {self._silent:.0f} s")
            return
        self._asked_at = now  # set before asking: the answer may come at once
        if not self._workers.ask(self._answer):
            self._asked_at = None

    def _answer(self) -> None:
        self._asked_at, self._silent, self._warn_at = None, 0.0, _SILENT

    def _end(self, text: str, cause: BaseException | None = None) -> None:
        if self._settler.fatal is None:
            error = WorkersLostError(text)
            error.__cause__ = cause
            self._settler.fatal = error
            self._hand.notify()

    def _facts(self) -> dict[str, str]:
        counters = self._settler.handle.watch.counters
        return {"topic": counters.topic, "subscription": counters.subscription}
