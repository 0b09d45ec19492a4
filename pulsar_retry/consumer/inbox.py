"""One stream of messages from two subscriptions: the topic's and the retry topic's.

Two consumers instead of pulsar-client's list consumer, because the retry topic has to be Shared
and read from its start whatever the main subscription is, and because a list consumer loses
`topic`, `seek` and `get_last_message_id` (and some speed).

While messages flow they are taken straight from pulsar-client's own queues. A source that was
found empty is *armed*: one asynchronous receive waits in it and will put its message into `ready`,
where a blocked `receive` sleeps. So there is no polling, and an interrupted or timed-out `receive`
loses nothing: the armed message stays here for the next call.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import _pulsar
import attrs

from pulsar_retry.consumer.results import error_of

#: What a batch receive waits for when no policy is given (pulsar-client's defaults).
DEFAULT_BATCH_LIMITS = (-1, 10 * 1024 * 1024, 100)

#: Seconds between two looks for signals, as in pulsar-client.
_SIGNAL_INTERVAL = 0.1

#: Seconds for closed consumers to answer their last receives.
_CALLBACK_PATIENCE = 2.0

#: Milliseconds that a batch receive waits in one source before it looks at the other.
BATCH_SLICE_MS = 100


@attrs.define(eq=False)
class _Source:
    """One of pulsar-client's consumers, and whether an asynchronous receive waits in it."""

    raw: Any
    armed: bool = False


class Inbox:
    """Receives from *main* and *retry* in turn, blocking until either has a message.

    Thread-safe: any number of threads may receive.

    Attributes:
        express: *main*'s own receive while it flows and nothing else waits, else None. Whoever
            receives may call it with 0 instead of `receive`, and falls back to that when it is
            empty; so the usual case costs no more than a bare consumer.
    """

    def __init__(self, main: Any, retry: Any, letter_seen: Callable[[Any], None]) -> None:
        """Make the inbox of two raw consumers; *letter_seen* is told of each retry letter."""
        self._main = _Source(main)
        self._retry = _Source(retry)
        self._letter_seen = letter_seen
        self._turn = (self._main, self._retry)
        self.express: Callable[[int], Any] | None = None
        self._ready: queue.SimpleQueue[tuple[bool, Any, _pulsar.Result]] = queue.SimpleQueue()
        self._left_over: deque[Any] = deque()
        self._lock = threading.Lock()
        self._waiting = 0
        #: Which sources' asynchronous receives are still to call back.
        self._unanswered: set[bool] = set()

    def receive(self, timeout: float | None) -> Any:
        """Return the next raw message, within *timeout* seconds (None: for ever).

        Raises:
            pulsar.Timeout: none came.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        message = self._take()
        if message is not None:
            return message
        with self._lock:
            self._waiting += 1
            for source in self._turn:
                self._arm(source)
        try:
            item = self._wait(timeout)
        except queue.Empty:
            raise error_of(_pulsar.Result.Timeout) from None
        finally:
            with self._lock:
                self._waiting -= 1
        return self._unpack(item)

    def _wait(self, timeout: float | None) -> tuple[bool, Any, _pulsar.Result]:
        """Return what comes into `ready`; an endless wait looks for signals as pulsar-client does.

        A signal interrupts the wait only if the system delivers it to this very thread.
        """
        if timeout is not None:
            return self._ready.get(timeout=timeout)
        while True:
            with contextlib.suppress(queue.Empty):
                return self._ready.get(timeout=_SIGNAL_INTERVAL)

    def wait_for_callbacks(self) -> None:
        """After the consumers are closed, wait for their receives to say so.

        A callback that comes while the interpreter ends would end the process with an abort.
        """
        deadline = time.monotonic() + _CALLBACK_PATIENCE
        while self._unanswered and time.monotonic() < deadline:
            time.sleep(0.001)

    def _take(self) -> Any | None:
        """Return a message that is here already, else None; both sources get their turn."""
        if self._left_over:
            with contextlib.suppress(IndexError):
                return self._left_over.popleft()
        if not self._ready.empty():
            with contextlib.suppress(queue.Empty):
                return self._unpack(self._ready.get_nowait())
        first, second = self._turn
        if not second.armed:
            # Both may have messages: the other one is first next time.
            self._turn = (second, first)
            message = self._poll(second)
            if message is not None:
                return message
        return None if first.armed else self._poll(first)

    def _poll(self, source: _Source) -> Any | None:
        try:
            message = source.raw.receive(0)
        except _pulsar.Timeout:
            with self._lock:
                self._arm(source)
            return None
        if source is self._retry:
            self._letter_seen(message)
        elif self._retry.armed and not self._left_over:
            # In this order, while the callback of an armed receive does it the other way round:
            # a letter that comes in between is seen by one of the two.
            self.express = source.raw.receive
            if not self._ready.empty():
                self.express = None
        return message

    def _arm(self, source: _Source) -> None:
        """Let an asynchronous receive wait in *source*. Call with the lock held."""
        if source.armed:
            return
        source.armed = True
        self.express = None
        # pulsar-client keeps the callback for as long as the consumer lives, so it must not keep
        # the consumer. SimpleQueue.put never blocks and never raises, so nothing can escape into
        # the C++ library.
        inbox, ready, unanswered = weakref.ref(self), self._ready, self._unanswered
        letter = source is self._retry
        unanswered.add(letter)

        def arrived(result: _pulsar.Result, message: Any) -> None:
            ready.put((letter, message, result))
            unanswered.discard(letter)
            if (this := inbox()) is not None:
                this.express = None

        source.raw.receive_async(arrived)  # may call back before it returns

    def _disarm(self, *, letter: bool) -> None:
        """Take note that the message that a source was armed for is taken."""
        source = self._retry if letter else self._main
        with self._lock:
            source.armed = False
            if self._waiting:
                self._arm(source)

    def _unpack(self, item: tuple[bool, Any, _pulsar.Result]) -> Any:
        letter, message, result = item
        if result != _pulsar.Result.Ok:
            # Closed: stays armed, and every other waiting thread is to hear of it too.
            self._ready.put(item)
            raise error_of(result)
        self._disarm(letter=letter)
        if letter:
            self._letter_seen(message)
        return message

    def receive_batch(self, limits: tuple[int, int, int]) -> list[Any]:
        """Return messages until one of *limits* (count, bytes, milliseconds; ≤ 0: none) is met."""
        count, size, wait = limits
        deadline = time.monotonic() + wait / 1000 if wait > 0 else None
        batch: list[Any] = []
        length = 0
        while (count <= 0 or len(batch) < count) and (size <= 0 or length < size):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            for message in self._some(left):
                if count > 0 and len(batch) >= count:
                    self._left_over.append(message)
                else:
                    batch.append(message)
                    length += message.length()
        return batch

    def _some(self, timeout: float | None) -> list[Any]:
        """Return at least one message, or none when *timeout* seconds have passed."""
        if not self._main.armed and not self._left_over and self._ready.empty():
            with self._lock:
                self._arm(self._retry)
            messages: list[Any] = self._main.raw.batch_receive()
            if messages:
                return messages
        try:
            return [self.receive(timeout)]
        except _pulsar.Timeout:
            return []

    def drop(self, *, letters: bool = True) -> None:
        """Forget the messages that wait here, of the retry topic only if *letters*.

        The broker still holds them unacknowledged.
        """
        self._left_over.clear()
        kept = []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._ready.get_nowait()
                letter, _, result = item
                if result != _pulsar.Result.Ok or (letter and not letters):
                    kept.append(item)
                else:
                    self._disarm(letter=letter)
        for item in kept:
            self._ready.put(item)
