"""One stream of messages from two subscriptions: the topic's and the retry topic's.

Two consumers instead of pulsar-client's list consumer, because the retry topic has to be Shared
and read from its start whatever the main subscription is, and because a list consumer loses
`topic`, `seek` and `get_last_message_id` (and some speed).

While messages flow they are taken straight from pulsar-client's own queues. A source that was
found empty is *armed*: one asynchronous receive waits in it and will bring its message here, where
a blocked `receive` sleeps. So there is no polling, and an interrupted or timed-out `receive` loses
nothing: the message stays here for the next call.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import _pulsar
import attrs

from pulsar_retry.consumer.batching import Batch
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.results import error_of

#: Seconds between two looks for signals in an endless wait, as in pulsar-client. The system may
#: deliver a signal to another thread, which does not interrupt the wait.
_SIGNAL_INTERVAL = 0.1

#: Seconds between two looks at the retry topic where messages must not wait here.
POLL_INTERVAL = 0.05

#: Seconds for closed consumers to answer their last receives.
_CALLBACK_PATIENCE = 2.0


@attrs.define(eq=False)
class _Source:
    """One of pulsar-client's consumers.

    Attributes:
        raw: The consumer.
        letters: Whether it is the retry topic's.
        armed: Whether an asynchronous receive waits in it, or its message waits here.
    """

    raw: Any
    letters: bool
    armed: bool = False


@attrs.frozen
class Item:
    """A message that waits here, or was taken.

    Attributes:
        source: Where it came from.
        message: The raw message.
        armed: Whether *source* stays armed until it is taken.
    """

    source: _Source
    message: Any
    armed: bool


class Inbox:
    """Receives from *main* and *retry* in turn.

    Thread-safe: any number of threads may receive. `receive` and `receive_batch` block until there
    is a message; whoever must not block calls `take`, and again when `told` is called.

    Attributes:
        arms: Whether messages may wait here. Where they may not, `on_ready` is not called, and
            whoever waits asks again every `POLL_INTERVAL`.
        on_ready: Called when `take` may return or raise something, on one of pulsar-client's
            threads: it must not raise.
        fast_receive: *main*'s own receive while it flows and nothing waits here, else None. Whoever
            receives may call it with 0 instead of `receive`, and falls back to that when it is
            empty; so the usual case costs no more than a bare consumer.
    """

    def __init__(
        self,
        main: Any,
        retry: Any,
        letter_seen: Callable[[Any], None],
        *,
        arms: bool = True,
        clock: Clock = SYSTEM,
        polls: bool = True,
    ) -> None:
        """Make the inbox of two raw consumers, or of one.

        Args:
            main: The topic's.
            retry: The retry topic's; None: there is none.
            letter_seen: Told of each retry letter before it is handed out.
            arms: Whether messages may wait here. Not so with an acknowledgement time-out, which
                runs from the moment they leave pulsar-client; then `receive` polls.
            clock: Tells the time.
            polls: Whether *main* can be asked for what it holds. Not so without a receiver queue.
        """
        self._clock = clock
        self.arms = arms
        self.on_ready: Callable[[], None] = _nobody
        self._polls = polls
        self.fast_receive: Callable[[int], Any] | None = None
        self._main = _Source(main, letters=False)
        # One that is not there counts as one in which a receive waits for ever.
        self._retry = _Source(retry, letters=True, armed=retry is None)
        self._turn = (self._main, self._retry)
        self._letter_seen = letter_seen
        # Guards all below and `fast_receive`; never held while pulsar-client is called, for it may
        # call back at once.
        self._changed = clock.condition(threading.Lock())
        self._ready: deque[Item] = deque()
        self._waiting = 0
        self._unanswered = 0
        self._closed: Exception | None = None

    def receive(self, timeout: float | None) -> Any:
        """Return the next raw message, within *timeout* seconds (None: for ever).

        Raises:
            pulsar.Timeout: none came.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        item = self._take() or self._wait(timeout)
        return item.message

    def receive_batch(self, limits: tuple[int, int, int]) -> list[Any]:
        """Return messages until one of *limits* (count, bytes, milliseconds; ≤ 0: none) is met.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        batch: Batch[Item] = Batch(limits, self._clock.monotonic())
        try:
            while not batch.is_full(now := self._clock.monotonic()):
                item = self._take() or self._wait(batch.left(now))
                if not batch.add(item, item.message.length()):
                    self.put_back([item])
                    break
        except _pulsar.Timeout:
            pass
        except BaseException:
            self.put_back(batch.items)
            raise
        return [item.message for item in batch.items]

    def take(self) -> Item | None:
        """Return the next message if one is here, else None. Never waits.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        item = self._take()
        if item is None and self._closed is not None:
            raise self._closed
        return item

    def put_back(self, items: list[Item]) -> None:
        """Give messages that were taken to the next call, before all others."""
        with self._changed:
            self._ready.extendleft(attrs.evolve(item, armed=False) for item in reversed(items))
            self.fast_receive = None
            self._changed.notify_all()

    def ran_dry(self) -> None:
        """Take note that *main* no longer flows, where somebody else has waited for it."""
        with self._changed:
            self.fast_receive = None

    def holds(self) -> bool:
        """Tell whether a message waits here."""
        return bool(self._ready)

    def drop(self, *, letters: bool = True) -> list[Item]:
        """Forget the messages that wait here, of the retry topic only if *letters*; return them.

        The broker still holds them unacknowledged.
        """
        dropped = []
        with self._changed:
            waiting, self._ready = self._ready, deque()
            for item in waiting:
                if letters or not item.source.letters:
                    self._taken(item)
                    dropped.append(item)
                else:
                    self._ready.append(item)
        self._arm_for_waiting()
        return dropped

    def wait_for_callbacks(self) -> None:
        """After the consumers are closed, wait for their receives to say so.

        A callback that comes while the interpreter ends would end the process with an abort.
        """
        deadline = self._clock.monotonic() + _CALLBACK_PATIENCE
        while self._unanswered and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)

    def _take(self) -> Item | None:
        """Return a message that is here already, else None; both sources get their turn."""
        if self._ready and (item := self._pop()) is not None:
            return item
        first, second = self._turn
        if not second.armed:
            # Both may have messages: the other one is first next time.
            self._turn = (second, first)
            if (item := self._poll(second)) is not None:
                return item
        return None if first.armed else self._poll(first)

    def _poll(self, source: _Source) -> Item | None:
        """Return a message that pulsar-client holds, or arm *source* when it holds none."""
        if not self._polls:
            self._arm(source)
            return None
        try:
            message = source.raw.receive(0)
        except _pulsar.Timeout:
            self._arm(source)
            return None
        if source.letters:
            self._letter_seen(message)
        elif self.fast_receive is None:
            with self._changed:
                if self._retry.armed and not self._ready:
                    self.fast_receive = source.raw.receive
        return Item(source, message, armed=False)

    def _wait(self, timeout: float | None) -> Item:
        """Return the next message that is brought here."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        if not self.arms:
            return self._wait_by_polling(deadline)
        with self._changed:
            self._waiting += 1
        try:
            while True:
                self._arm(self._main)
                self._arm(self._retry)
                if (item := self._pop()) is not None:
                    return item
                left = self._until(deadline)
                with self._changed:
                    if not self._ready and self._closed is None:
                        self._changed.wait(
                            self._clock.interval(_SIGNAL_INTERVAL) if left is None else left
                        )
                    if not self._ready and self._closed is not None:
                        raise self._closed
                    if not self._ready and left == 0:
                        raise error_of(_pulsar.Result.Timeout)
        finally:
            with self._changed:
                self._waiting -= 1

    def _wait_by_polling(self, deadline: float | None) -> Item:
        """Do what `_wait` does, with nothing that could bring a message here meanwhile."""
        while (item := self._take()) is None:
            left = self._until(deadline)
            if left == 0:
                raise error_of(_pulsar.Result.Timeout)
            pause = POLL_INTERVAL if left is None else min(left, POLL_INTERVAL)
            with contextlib.suppress(_pulsar.Timeout):
                return Item(self._main, self._main.raw.receive(round(pause * 1000)), armed=False)
        return item

    def _pop(self) -> Item | None:
        with self._changed:
            if not self._ready:
                return None
            item = self._ready.popleft()
            self._taken(item)
        self._arm_for_waiting()
        if item.source.letters:
            self._letter_seen(item.message)
        return item

    def _taken(self, item: Item) -> None:
        """Take note that *item* is no longer here. Call with the lock held."""
        if item.armed:
            item.source.armed = False
            self.fast_receive = None  # the retry topic would not be looked at

    def _arm_for_waiting(self) -> None:
        """Arm for other threads what this one has just disarmed."""
        if self._waiting:
            self._arm(self._main)
            self._arm(self._retry)

    def _arm(self, source: _Source) -> None:
        """Let an asynchronous receive wait in *source*, unless one does."""
        with self._changed:
            if source.armed or self._closed is not None or not self.arms:
                return
            source.armed = True
            self._unanswered += 1
            if source is self._main:
                self.fast_receive = None
        # pulsar-client keeps the callback for as long as its consumer lives, so it must not keep
        # that consumer.
        inbox, letters = weakref.ref(self), source.letters

        def arrived(result: _pulsar.Result, message: Any) -> None:
            if (this := inbox()) is not None:
                this._arrived(result, message, letters=letters)  # noqa: SLF001 - this very class

        source.raw.receive_async(arrived)

    def _arrived(self, result: _pulsar.Result, message: Any, *, letters: bool) -> None:
        """Take the answer to an asynchronous receive. Raises nothing, for C++ calls it."""
        source = self._retry if letters else self._main
        with self._changed:
            self._unanswered -= 1
            if result == _pulsar.Result.Ok:
                self._ready.append(Item(source, message, armed=True))
                self.fast_receive = None
                self._changed.notify()
            else:
                self._closed = error_of(result)
                self._changed.notify_all()
        self.on_ready()

    def _until(self, deadline: float | None) -> float | None:
        """Return the seconds that are left, 0 or more; None for ever."""
        return None if deadline is None else max(0.0, deadline - self._clock.monotonic())


def _nobody() -> None:
    """Whom the inbox tells where nobody has asked."""
