"""One stream of messages from two subscriptions: the topic's and the retry topic's.

There are two raw consumers instead of pulsar-client's list consumer for two reasons. The retry
topic has to be Shared and read from its start, whatever the main subscription is. And a list
consumer has no `topic`, `seek` and `get_last_message_id` (and is slower).

While messages arrive steadily, they are taken directly from pulsar-client's queues, a few
milliseconds from one source and then from the other. A source that was found empty is *armed*: one
asynchronous receive waits in it and brings its message here, where a blocked `receive` waits. So an
interrupted or timed-out `receive` loses no message: it stays here for the next call. An
asynchronous receive costs more than the message itself. So a source that had messages a moment ago
is asked again a moment later instead, as long as the other source has messages.

pulsar-client can overlook such an asynchronous receive: it checks whether one waits, and then puts
the message into its queue. A receive that begins in between waits for the next message, which may
never come. So whoever waits here looks into the queue now and then.
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

from pulsar_retry.consumer.batching import Batch, InboxSource, Item
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.raw import is_newer
from pulsar_retry.runtime.results import error_of

#: Seconds between two checks for signals in a wait without a limit, as in pulsar-client. The system
#: can deliver a signal to another thread, and then the signal does not interrupt the wait.
_SIGNAL_INTERVAL = 0.1

#: Seconds between two checks of the retry topic when messages must not be kept here.
POLL_INTERVAL = 0.05

#: Seconds between two looks into the queue of an armed source.
LOOK_INTERVAL = 0.2

#: Seconds for which a message from the queue of an armed source is kept if the order matters: it
#: may be newer than the message that an asynchronous receive is bringing. That message waits while
#: pulsar-client's listener thread is busy, for example with the listener of another consumer.
_KEEP_SECONDS = 10.0

#: Seconds for which one source is read while both have messages, and after which a source that had
#: messages is asked again.
TURN_SECONDS = 0.002

#: The time-out in milliseconds of a receive that does not wait. With 0, an empty queue costs a wait
#: of about 0.06 ms, because Linux rounds such times up.
_NO_WAIT = -1

#: How many seconds closed consumers have to answer their last receives.
_CALLBACK_PATIENCE = 2.0


class Inbox:
    """Receives from *main* and *retry* in turn.

    Thread-safe: any number of threads can receive. `receive` and `receive_batch` block until a
    message arrives. A caller that must not block calls `take`, and again at each `on_ready`; and it
    calls `look_if_due` every `LOOK_INTERVAL`.

    Attributes:
        arms: Whether messages can be kept here. If not, `on_ready` is not called, and a caller that
            waits asks again every `POLL_INTERVAL`.
        on_ready: Called when `take` may return or raise something. A thread of pulsar-client calls
            it, so it must not raise.
        on_held: Called at each look while the topic is not read; it may call `go_on`.
        fast_receive: *main*'s own receive while messages arrive steadily and none waits here,
            otherwise None. A caller can call it with 0 instead of `receive`, and has to call
            `receive` if it finds nothing. So the usual case costs no more than a bare consumer.
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
        ordered: bool = True,
    ) -> None:
        """Make the inbox of one or two raw consumers.

        Args:
            main: The consumer of the topic.
            retry: The consumer of the retry topic; None if there is none.
            letter_seen: Called with each retry letter before the letter is returned.
            arms: Whether messages can be kept here. They cannot with an acknowledgement time-out,
                because it starts when they leave pulsar-client; then `receive` polls.
            clock: The clock.
            polls: Whether *main* can be asked for fetched messages. Without a receiver queue it
                cannot.
            ordered: Whether the order of *main* matters.
        """
        self._clock = clock
        self.arms = arms
        self.on_ready: Callable[[], None] = _do_nothing
        self.on_held: Callable[[], object] = _do_nothing
        self._polls = polls
        self.fast_receive: Callable[[int], Any] | None = None
        self._main = InboxSource(main, letters=False, keep=_KEEP_SECONDS if ordered else 0.0)
        # A source that does not exist counts as armed for ever. Letters have no order.
        self._retry = InboxSource(retry, letters=True, armed=retry is None)
        # The source whose turn it is comes first.
        self._turn = (self._main, self._retry)
        self._turn_ends = float("-inf")
        self._letter_seen = letter_seen
        # Guards everything below and `fast_receive`. It is never held during a call of
        # pulsar-client that can run a callback.
        self._changed = clock.condition(threading.Lock())
        self._ready: deque[Item] = deque()
        self._looks_at = 0.0
        self._waiting = 0
        self._unanswered = 0
        self._closed: Exception | None = None

    def receive(self, timeout: float | None) -> Any:
        """Return the next raw message, within *timeout* seconds (None: no limit).

        Raises:
            pulsar.Timeout: no message came in time.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        item = self._take() or self._wait(timeout)
        return item.message

    def receive_batch(self, limits: tuple[int, int, int]) -> list[Any]:
        """Return messages until one of *limits* is reached: messages, bytes, ms (≤ 0: no limit).

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
        """Return the next message if one is available, otherwise None. It never waits.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        item = self._take()
        if item is None and self._closed is not None:
            raise self._closed
        return item

    def put_back(self, items: list[Item]) -> None:
        """Return messages that were taken; the next call gets them first."""
        with self._changed:
            self._ready.extendleft(attrs.evolve(item, armed=False) for item in reversed(items))
            self.fast_receive = None
            self._changed.notify_all()

    def ran_dry(self) -> None:
        """Record that *main* has no more messages, as another wait has found out."""
        with self._changed:
            self.fast_receive = None

    def holds(self) -> bool:
        """Tell whether a message waits here."""
        return bool(self._ready or self._main.overlooked or self._retry.overlooked)

    def leave_topic(self) -> None:
        """Do not read the topic until `go_on`, and drop its messages that wait here.

        If there is a connection again, they may be of that one, and are kept.
        """
        with self._changed:
            if not self._main.raw.is_connected():
                self._ready = deque(each for each in self._ready if each.source.letters)
                self._main.overlooked.clear()
            self.fast_receive = None
            # A receive that waits there brings a message of the next connection.
            self._main.armed = self._main.is_held = True

    def go_on(self) -> None:
        """Read the topic again."""
        with self._changed:
            main = self._main
            main.is_held = False
            main.armed = main.is_asked or any(i.armed and i.source is main for i in self._ready)
            self._changed.notify_all()
        self.on_ready()

    def drop(self, *, letters: bool = True) -> list[Item]:
        """Drop the waiting messages and return them; keep letters unless *letters* is True.

        For the broker they are still unacknowledged.
        """
        dropped = []
        with self._changed:
            waiting, self._ready = self._ready, deque()
            for source in (self._main, self._retry):
                waiting.extend(Item(source, each, armed=False) for each, _ in source.overlooked)
                source.overlooked.clear()
            for item in waiting:
                if letters or not item.source.letters:
                    self._taken(item)
                    dropped.append(item)
                else:
                    self._ready.append(item)
        self._arm_for_waiting()
        return dropped

    def wait_for_callbacks(self) -> None:
        """Wait, after the consumers are closed, until their pending receives have answered.

        A callback that runs while the interpreter shuts down would abort the process.
        """
        deadline = self._clock.monotonic() + _CALLBACK_PATIENCE
        while self._unanswered and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)

    def _take(self) -> Item | None:
        """Return an available message, otherwise None; the two sources take turns.

        If it returns None, both sources are armed, or had no message.
        """
        now = self._clock.monotonic()
        self.look_if_due(now)
        if self._ready and (item := self._pop()) is not None:
            return item
        first, second = self._turn
        if now >= self._turn_ends:
            first, second = second, first
            self._begin_turn(first, second, now)
        message = None
        if not first.armed and now >= first.asked_at:
            message = self._ask(first, now)
        if message is None and not second.armed and now >= second.asked_at:
            message = self._ask(second, now)
            if message is not None:
                self._begin_turn(second, first, now)
                first = second
        if message is not None:
            if first.letters:
                self._letter_seen(message)
            else:
                self._let_flow(now)
            return Item(first, message, armed=False)
        self._arm(self._main)
        self._arm(self._retry)
        return self._pop() if self._ready else None

    def _begin_turn(self, first: InboxSource, second: InboxSource, now: float) -> None:
        self._turn = (first, second)
        self._turn_ends = now + TURN_SECONDS

    def _ask(self, source: InboxSource, now: float) -> Any:
        """Return a raw message that pulsar-client has fetched; None if it has none.

        Then *source* is asked again in a moment, or armed.
        """
        if self._polls:
            try:
                message = source.raw.receive(_NO_WAIT)
            except _pulsar.Timeout:
                pass
            else:
                source.had_at = now
                return message
            if self.arms and now < source.had_at + TURN_SECONDS:
                source.asked_at = now + TURN_SECONDS
                return None
        self._arm(source)
        return None

    def _let_flow(self, now: float) -> None:
        """Have messages of the topic taken directly, until it is the retry topic's turn."""
        if self.fast_receive is None and now < self._turn_ends:
            with self._changed:
                # Another thread may have armed it: then an older message is under way.
                if not self._ready and not self._main.armed:
                    self.fast_receive = self._main.raw.receive

    def _wait(self, timeout: float | None) -> Item:
        """Wait for the next message that arrives here, and return it."""
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
                left = self._seconds_left(deadline)
                if left is None:
                    pause = self._clock.interval(_SIGNAL_INTERVAL)
                else:
                    pause = min(left, self._clock.interval(LOOK_INTERVAL))
                with self._changed:
                    if not self._ready and self._closed is None:
                        self._changed.wait(pause)
                self.look_if_due(self._clock.monotonic())
                with self._changed:
                    if not self._ready and self._closed is not None:
                        raise self._closed
                    if not self._ready and left == 0:
                        raise error_of(_pulsar.Result.Timeout)
        finally:
            with self._changed:
                self._waiting -= 1

    def _wait_by_polling(self, deadline: float | None) -> Item:
        """Do what `_wait` does, when no message can be brought here meanwhile."""
        while (item := self._take()) is None:
            left = self._seconds_left(deadline)
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
        """Record that *item* was taken. Call it with the lock held."""
        if item.armed:
            item.source.armed = item.source.is_held
            self.fast_receive = None  # it would not read the retry topic

    def _arm_for_waiting(self) -> None:
        """Arm the sources again for other threads, because this thread has just disarmed one."""
        if self._waiting:
            self._arm(self._main)
            self._arm(self._retry)

    def _arm(self, source: InboxSource) -> None:
        """Start an asynchronous receive in *source*, unless one is waiting there."""
        with self._changed:
            if source.armed or self._closed is not None or not self.arms:
                return
            source.armed = source.is_asked = True
            source.asked_at = float("-inf")
            self._unanswered += 1
            if source is self._main:
                self.fast_receive = None
        # pulsar-client keeps the callback as long as its consumer exists, so the callback must not
        # keep that consumer alive.
        inbox, letters = weakref.ref(self), source.letters

        def arrived(result: _pulsar.Result, message: Any) -> None:
            if (this := inbox()) is not None:
                this._arrived(result, message, letters=letters)  # noqa: SLF001 - the same class

        source.raw.receive_async(arrived)

    def _arrived(self, result: _pulsar.Result, message: Any, *, letters: bool) -> None:
        """Handle the answer to an asynchronous receive. It never raises, because C++ calls it."""
        source = self._retry if letters else self._main
        # An older message may have been overlooked.
        has_order = source.keep > 0 and result == _pulsar.Result.Ok
        queued = self._queued(source) if has_order else None
        with self._changed:
            self._unanswered -= 1
            source.is_asked = False
            if result == _pulsar.Result.Ok:
                self._place(Item(source, message, armed=True))
                if queued is not None:
                    self._place(Item(source, queued, armed=False))
                self._place_overlooked(source)
            else:
                self._closed = error_of(result)
                self._changed.notify_all()
        self.on_ready()

    def look_if_due(self, now: float) -> None:
        """Look for letters if it is their turn, and now and then for overlooked messages.

        Args:
            now: The time of the clock.
        """
        if self.fast_receive is not None and not self._retry.armed and now >= self._turn_ends:
            self._give_turn_to_letters(now)
        if now < self._looks_at:
            return
        self._looks_at = now + LOOK_INTERVAL
        if self._main.is_held:
            self.on_held()
        placed = False
        for source in (self._retry, self._main):
            if not source.is_asked or source.is_held:
                continue
            message = self._queued(source)
            if message is None and not source.overlooked:
                continue
            with self._changed:
                if message is not None:
                    source.overlooked.append((message, now + source.keep))
                if source.overlooked and (not source.is_asked or source.overlooked[0][1] <= now):
                    self._place_overlooked(source)
                    placed = True
        if placed:
            self.on_ready()

    def _give_turn_to_letters(self, now: float) -> None:
        """Have a letter wait here if there is one; otherwise messages of the topic flow on."""
        if not self.arms:
            self.ran_dry()  # a letter must not wait here: the next receive asks for one
            return
        self._begin_turn(self._main, self._retry, now)
        if now < self._retry.asked_at:
            return
        # If it is closed, the next receive says so: this caller has a message in hand.
        with contextlib.suppress(_pulsar.PulsarException):
            if (letter := self._ask(self._retry, now)) is not None:
                self._begin_turn(self._retry, self._main, now)
                with self._changed:
                    self._place(Item(self._retry, letter, armed=False))

    def _queued(self, source: InboxSource) -> Any:
        """Return a raw message from pulsar-client's queue; None if there is none."""
        if not self._polls:
            return None
        try:
            return source.raw.receive(_NO_WAIT)
        except _pulsar.PulsarException:  # a time-out, or closed
            return None

    def _place_overlooked(self, source: InboxSource) -> None:
        """Have the overlooked messages of *source* wait here. Call it with the lock held."""
        while source.overlooked:
            message, _ = source.overlooked.popleft()
            self._place(Item(source, message, armed=False))

    def _place(self, item: Item) -> None:
        """Have *item* wait, before newer messages of its topic. Call it with the lock held."""
        newer = (at for at, each in enumerate(self._ready) if is_newer(each.message, item.message))
        self._ready.insert(next(newer, len(self._ready)), item)
        self.fast_receive = None
        self._changed.notify()

    def _seconds_left(self, deadline: float | None) -> float | None:
        """Return the remaining seconds, 0 or more; None: no limit."""
        return None if deadline is None else max(0.0, deadline - self._clock.monotonic())


def _do_nothing() -> None:
    """The default of `Inbox.on_ready`: it does nothing."""
