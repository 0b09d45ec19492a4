"""Negative acknowledgements with delays of their own.

pulsar-client has one delay per consumer, and its timer starts anew with every nack, so that
frequent nacks keep older ones from ever being redelivered. Here a heap holds what is due when; due
messages are handed to pulsar-client in bursts, far enough apart for its own timer to run.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import weakref
from typing import Any, NamedTuple, Protocol

from pulsar_retry.consumer.clock import SYSTEM, Clock

#: What pulsar-client adds at least (its floor, in milliseconds); we ask that much earlier.
CLIENT_DELAY_MS = 100

_LEAD = CLIENT_DELAY_MS / 1000
#: Seconds that a burst may take: pulsar-client redelivers nothing while more is handed to it, so
#: the first of very many must not wait for the last.
_BURST = 0.15
#: Seconds between two bursts: longer than pulsar-client's floor plus one of its ticks.
_BURST_GAP = 0.15
#: Seconds that the thread stays when nothing is pending, so that a slow stream of nacks
#: does not start a thread each.
_LINGER = 1.0

_log = logging.getLogger("pulsar_retry")


class Redeliverer(Protocol):
    """A consumer, as far as its nacks are concerned."""

    def _redeliver(self, message_id: Any, *, letter: bool) -> None:
        """Hand a due message to pulsar-client."""


class Checker(Protocol):
    """Something that wants to be called later."""

    def _check(self) -> None:
        """Do what is due."""


class _Pending(NamedTuple):
    """An entry of the heap: a tuple is compared in C, and never beyond its number."""

    due: float
    number: int
    owner: weakref.ref[Any]
    #: None: the owner is to be checked.
    message_id: Any
    letter: bool


class NackTimer:
    """Redelivers messages when they are due; one per client, shared by its consumers.

    Thread-safe. Its thread runs only while something is pending, and holds no consumer alive.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock.monotonic
        self._new_thread = clock.thread
        self._heap: list[_Pending] = []
        self._numbers = itertools.count()
        self._changed = clock.condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, owner: Redeliverer, message_id: Any, delay: float, *, letter: bool) -> None:
        """Have *owner* redeliver *message_id* in *delay* seconds; *letter*: of its retry topic."""
        self._push(owner, message_id, delay, letter=letter)

    def check_later(self, owner: Checker, delay: float) -> None:
        """Have *owner* checked in about *delay* seconds; never earlier than a tenth before."""
        self._push(owner, None, delay, letter=False)

    def _push(self, owner: Any, message_id: Any, delay: float, *, letter: bool) -> None:
        # A user's backoff may return anything: neither inf nor NaN may end the thread.
        delay = min(max(0.0, delay), threading.TIMEOUT_MAX)
        pending = _Pending(
            self._clock() + delay, next(self._numbers), weakref.ref(owner), message_id, letter
        )
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._heap, pending)
            if self._thread is None:
                thread = self._new_thread(target=self._run, name="pulsar-retry-nacks", daemon=True)
                thread.start()  # where it cannot, the next one may
                self._thread = thread
            elif self._heap[0] is pending:
                self._changed.notify()

    def discard(self, owner: Redeliverer) -> None:
        """Forget what *owner* has pending: it closes, and the broker redelivers at once."""
        with self._changed:
            self._heap = [entry for entry in self._heap if entry.owner() not in (owner, None)]
            heapq.heapify(self._heap)
            self._changed.notify()

    def close(self) -> None:
        """Forget everything and end the thread."""
        with self._changed:
            self._closed = True
            self._heap = []  # a new one: a collection may call this in the midst of a `_pop`
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while self._wait():
            self._burst()

    def _wait(self) -> bool:
        """Wait until something is due; False ends the thread."""
        with self._changed:
            while not self._closed:
                heap = self._heap
                wait = heap[0].due - _LEAD - self._clock() if heap else _LINGER
                if wait <= 0:
                    return True
                if not self._changed.wait(wait) and not self._heap:
                    break
            self._thread = None
            return False

    def _burst(self) -> None:
        """Release what is due, the oldest first, then give pulsar-client time for it."""
        began = self._clock()
        while (pending := self._pop(began)) is not None:
            self._release(pending)
            if self._clock() - began >= _BURST:
                break
        with self._changed:
            self._changed.wait_for(lambda: self._closed, _BURST_GAP)

    def _pop(self, now: float) -> _Pending | None:
        """Take one at a time, so that nacks and closing consumers need not wait for a burst."""
        with self._changed:
            heap = self._heap
            return heapq.heappop(heap) if heap and heap[0].due - _LEAD <= now else None

    def _release(self, pending: _Pending) -> None:
        owner = pending.owner()
        if owner is None:
            return
        try:
            if pending.message_id is None:
                owner._check()  # noqa: SLF001
            else:
                owner._redeliver(pending.message_id, letter=pending.letter)  # noqa: SLF001
        except Exception:  # noqa: BLE001 - one consumer's trouble must not stop the others' nacks
            _log.warning("what was due could not be done", exc_info=True)
