"""A virtual clock on which one thread runs at a time, and a seed decides which one is next."""

from __future__ import annotations

import heapq
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.testing.clock import Ticket, VirtualClock, _Thread

#: Real seconds for a thread to give up its turn.
_PATIENCE = 20.0


class Turns(VirtualClock):
    """Hands turns to threads, so that a schedule is the same each time.

    A thread keeps its turn until it waits on this clock, or ends. The thread that drives the clock
    hands out the turns; no other thread runs while it runs.
    """

    def __init__(self, choose: Callable[[int], int]) -> None:
        """Make a clock; *choose* returns a number below its argument."""
        super().__init__(patience=_PATIENCE)
        self._choose = choose
        self._ready: list[Any] = []
        self._has_turn = False

    def thread(self, **options: Any) -> threading.Thread:
        """Return a thread that waits for its turn."""
        return _TurnThread(self, **options)

    def counted(self, task: Any) -> Any:
        """Return *task*: its thread is one of this clock, too."""
        return task

    def enqueue(self, gate: Any) -> None:
        """Have *gate* opened when it is its turn."""
        with self._changed:
            self._ready.append(gate)

    def give_up_turn(self) -> None:
        """Let another thread run."""
        with self._changed:
            self._has_turn = False
            self._changed.notify_all()

    def park(self, ticket: Ticket, timeout: float | None) -> bool:
        """Wait until *ticket* is over, and then for a turn."""
        if ticket.thread is not None:
            with self._changed:
                if not ticket.is_over:
                    if timeout is not None:
                        due = max(self._now + timeout, self._now + 1e-9)
                        self._put(due, lambda: self._over(ticket, woken=False), ticket)
                    self.end(ticket.thread)
                self._has_turn = False
                self._changed.notify_all()
            ticket.gate.acquire()
            return ticket.is_woken
        return super().park(ticket, timeout)

    def _over(self, ticket: Ticket, *, woken: bool) -> bool:
        with self._changed:
            if ticket.is_over:
                return False
            ticket.is_over, ticket.is_woken = True, woken
            if ticket.thread is None:
                ticket.gate.release()
            else:
                self.begin(ticket.thread)
                self._ready.append(ticket.gate)
            self._changed.notify_all()
            return True

    def _next(self, is_over: Callable[[], bool], limit: float) -> Callable[[], object] | None:
        with self._changed:
            while True:
                if self._has_turn:
                    if not self._changed.wait(_PATIENCE) and self._has_turn:
                        raise TimeoutError(f"a thread does not give up its turn: {self._busy}")
                elif is_over():
                    return None
                elif self._ready:
                    place = self._choose(len(self._ready)) if len(self._ready) > 1 else 0
                    self._has_turn = True
                    self._ready.pop(place).release()
                elif self.next_due() <= min(limit, sys.float_info.max):
                    due, _, call, _ = heapq.heappop(self._due)
                    self._now = max(self._now, due)
                    return call
                elif limit < float("inf"):
                    self._now = max(self._now, limit)
                    return None
                else:
                    raise TimeoutError("nothing is due, so nothing will end this wait")


class _TurnThread(_Thread):
    """A thread that runs when it is its turn."""

    _clock: Turns

    def __init__(self, clock: Turns, **options: Any) -> None:
        super().__init__(clock, **options)
        self._gate = threading.Lock()
        self._gate.acquire()
        self._is_finished = False
        self._joining: list[Ticket] = []

    def start(self) -> None:
        self._clock.enqueue(self._gate)
        super().start()

    def run(self) -> None:
        self._gate.acquire()
        try:
            super().run()
        finally:
            self._is_finished = True
            for ticket in self._joining:
                self._clock.wake(ticket)
            self._clock.give_up_turn()

    def join(self, timeout: float | None = None) -> None:
        if not self._is_finished:
            self._joining.append(ticket := Ticket())
            self._clock.park(ticket, timeout)

    def is_alive(self) -> bool:
        return super().is_alive() and not self._is_finished


class TurnWorker:
    """In place of a `Worker`: its thread waits for its turn."""

    def __init__(self, name: str, clock: Turns) -> None:
        self._name = name
        self._clock = clock
        self._tasks: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, task: Callable[[], object]) -> bool:
        """Run *task* after those before it, unless the worker is closed."""
        if self._closed:
            return False
        self._tasks.append(self._clock.counted(task))
        if self._thread is None:
            self._thread = self._clock.thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return True

    def _run(self) -> None:
        while self._tasks:
            try:
                self._tasks.popleft()()
            except ConsumerClosedError:  # it was too late
                continue
        self._thread = None

    def close(self, _timeout: float | None = None) -> None:
        """Take no more tasks, and wait for the others."""
        self._closed = True
        if self._thread is not None:
            self._thread.join()
