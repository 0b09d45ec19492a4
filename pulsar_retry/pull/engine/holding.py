"""Holds messages back while the retry budget is used up."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.pull.engine.work_queue import Work, WorkQueue
from pulsar_retry.pull.rules.budget import BudgetState, RetryBudget
from pulsar_retry.runtime.clock import Clock

_log = logging.getLogger("pulsar_retry")

#: How many letters wait in hand, ready to begin. The others stay in the retry topic.
_AHEAD = 100


class Holding:
    """The retry budget of one subscription, and the messages that it holds in hand. Thread-safe.

    It works only while a bucket is empty. Then each message that is ready passes `_hold`, which
    lets it begin or keeps it here.
    """

    def __init__(
        self,
        budget: RetryBudget,
        work_queue: WorkQueue,
        *,
        concurrency: int,
        most: int,
        facts: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """Make one with a full budget; it holds nothing before `attach`.

        Args:
            budget: The rules.
            work_queue: Where the messages come from.
            concurrency: How many messages are handled at a time at most.
            most: How many messages may be in hand.
            facts: What log lines tell about the subscription.
            clock: The clock.
        """
        self._work_queue = work_queue
        self._now = clock.monotonic
        self._limiter = LogLimiter(now=clock.monotonic)
        # Reentrant, because a garbage collection can settle messages at any moment.
        self._lock = threading.RLock()
        self._state = BudgetState(budget, concurrency, clock.monotonic())
        self._most = max(1, most // 2)
        self._done = 0
        self._succeeded = 0
        self._is_told = self._is_suspended = self._is_over = self._turn = False
        self._kept: dict[bool, deque[Work]] = {False: deque(), True: deque()}
        self._begun: list[Work] = []  # retries that began in the hold
        self._room = self._room_again = math.inf
        self._is_retry: Callable[[Work], bool] = lambda _work: False
        self._hold_letters: Callable[[bool], None] | None = None
        self._facts = facts

    @classmethod
    def of(cls, budget: RetryBudget | None, work_queue: WorkQueue, **arguments: Any) -> Self | None:
        """Make one; None without a budget."""
        return None if budget is None else cls(budget, work_queue, **arguments)

    def attach(
        self, is_retry: Callable[[Work], bool], hold_letters: Callable[[bool], None] | None
    ) -> None:
        """Set what belongs to the consumer.

        Args:
            is_retry: Tells whether a message was tried before.
            hold_letters: Stops or continues to receive from the retry topic; None if there is none.
        """
        self._is_retry, self._hold_letters = is_retry, hold_letters

    # -- results, on any thread -------------------------------------------------------------------

    def succeeded(self) -> None:
        """Record a message that was handled, and that no worker counts."""
        with self._lock:
            self._succeeded += 1

    def failed(self, *, retry: bool) -> None:
        """Record a message that has failed; *retry*: it had failed before."""
        with self._lock:
            now = self._now()
            self._count(now)
            self._state.failed(now, retry=retry, running=self._work_queue.running)
            begins = self._state.is_holding and not (
                self.is_active or self._is_suspended or self._is_over
            )
            if begins:
                self._room = self._room_again = 0
                self._work_queue.hold = self._hold
        if begins:
            self._work_queue.notify()

    def _count(self, now: float) -> None:
        """Add tokens for what was handled since the last call, and for the time."""
        done = self._work_queue.done() + self._succeeded
        self._state.succeeded(max(0, done - self._done), now)
        self._done = done

    def gauges(self) -> dict[str, float]:
        """Return how many tokens there are (0 while all messages are held), and what is held."""
        with self._lock:
            self._count(self._now())
            holds_all = self._state.ramp.is_holding
            return {
                "retry_budget": 0.0 if holds_all else self._state.retries.count,
                "holding": float(bool(self.held())),
            }

    def held(self) -> str:
        """Return what is held, in words; an empty string if nothing is."""
        with self._lock:
            if not self.is_active:
                return ""
            if self._state.ramp.is_holding:
                return "all messages"
            return "retries" if self._kept[True] else ""

    # -- the receiving thread ---------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether messages are held."""
        return self._work_queue.hold is not None

    def look(self, *, suspended: bool = False) -> float:
        """Let messages begin that may; return the seconds until the next one may.

        Args:
            suspended: Whether nothing is to be held, because the breaker decides.
        """
        if self._is_over or not (self.is_active or self._is_suspended):
            return math.inf
        with self._lock:
            self._count(self._now())
            self._is_suspended = suspended
            if suspended or not self._state.is_holding:
                self._end()
                return math.inf
            self._work_queue.hold = self._hold
            for work in reversed(self._work_queue.unstarted()):  # there may be less room now
                self._kept[self._is_retry(work)].appendleft(work)
            self._measure()
            while self._next_begins():
                pass
            running = self._work_queue.running() + len(self._work_queue.ready)
            waits = bool(self._kept[False] or self._kept[True])
            self._state.ramp.looked(running, self._now(), waits=waits)
            if self._hold_letters is not None:
                self._hold_letters(self._is_full())
            if held := self.held():
                self._tell_begin(held)
            return max(0.001, self._state.wait())

    def may_receive(self) -> bool:
        """Tell whether messages may be received."""
        if not self.is_active:
            return True
        with self._lock:
            self._count(self._now())
            self._measure()
            if self._hold_letters is None and self._is_full():
                return False  # without a retry topic, new messages are behind those held
            return self.at_a_time() > 0

    def at_a_time(self) -> int:
        """Return how many messages may be received at once."""
        with self._lock:
            if not (self.is_active and self._state.ramp.is_holding):
                return self._most
            return 0 if self._kept[False] else int(min(self._room, self._most))

    def _is_full(self) -> bool:
        most = self._most if self._hold_letters is None else min(_AHEAD, self._most)
        return len(self._kept[True]) >= most

    def _measure(self) -> None:
        """Note how many messages may begin."""
        queue = self._work_queue
        ready = queue.ready.copy()
        running = queue.running() + len(ready)
        if self._begun:
            alive = {id(slot.work) for slot in queue.slots} | {id(item) for item in ready}
            self._begun = [work for work in self._begun if id(work) in alive]
        room = self._state.room(running=running, retries=len(self._begun))
        self._room, self._room_again = room

    def _next_begins(self) -> bool:
        """Let one message begin; tell whether it could. New ones and others take turns."""
        for retry, kept in sorted(self._kept.items(), key=lambda each: each[0] is self._turn):
            if kept and self._has_room(retry=retry):
                self._turn = retry
                self._begins(work := kept.popleft(), retry=retry)
                self._work_queue.ready.append(work)
                self._work_queue.wake(1)
                return True
        return False

    def _has_room(self, *, retry: bool) -> bool:
        return self._room >= 1 and (self._room_again >= 1 or not retry)

    def _begins(self, work: Work, *, retry: bool) -> None:
        self._room -= 1
        if retry:
            self._room_again -= 1
            self._begun.append(work)

    def release(self) -> None:
        """Hold nothing any more, because the subscriber stops."""
        with self._lock:
            self._is_over = True
            self._end()

    def take_down(self) -> list[Work]:
        """Remove and return the messages that are held in hand."""
        with self._lock:
            works = [*self._kept[False], *self._kept[True]]
            for kept in self._kept.values():
                kept.clear()
            return works

    # -- holding ----------------------------------------------------------------------------------

    def _hold(self, work: Work) -> bool:
        """Keep a message that is ready; tell whether it is kept. If not, it begins."""
        retry = self._is_retry(work)
        with self._lock:
            if not self.is_active:  # it has just ended
                return False
            if self._kept[retry] or not self._has_room(retry=retry):
                self._kept[retry].append(work)
                return True
            self._begins(work, retry=retry)
            return False

    def _end(self) -> None:
        if not self.is_active:
            return
        self._work_queue.hold = None
        if self._hold_letters is not None:
            self._hold_letters(False)  # noqa: FBT003 - a bound method of any name
        works = self.take_down()
        self._begun.clear()
        self._room = self._room_again = math.inf
        self._work_queue.ready.extend(works)
        self._work_queue.wake(len(works))
        if self._is_told:
            self._is_told = False
            if self._is_suspended or self._is_over:
                return
            _log.warning(
                "the retry budget suffices again, and no message is held", extra=self._facts
            )

    def _tell_begin(self, held: str) -> None:
        if self._is_told or (turn := self._limiter.turn("held")) is None:
            return
        self._is_told = True
        text = (
            "the retry budget is used up because many attempts fail: %s are held until others "
            "succeed (no attempt is used up)%s"
        )
        _log.warning(text, held, turn, extra=self._facts)
