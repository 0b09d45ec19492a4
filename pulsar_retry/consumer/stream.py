"""One stream of messages from two subscriptions: the topic's and the retry topic's.

There are two raw consumers instead of pulsar-client's list consumer for two reasons. The retry
topic has to be Shared and read from its start, whatever the main subscription is. And a list
consumer has no `topic`, `seek` and `get_last_message_id` (and is slower).

The stream polls, and keeps nothing: a message stays in pulsar-client's queue until a caller wants
it, so a receive that times out loses no message. While messages arrive, one source is
read for a few milliseconds and then the other. While both are empty, the stream waits for the
topic, and asks the retry topic in between. A letter is seconds late by nature, so it can wait.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

import _pulsar
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.upstream import error_of

#: Seconds for which one source is read while both have messages.
TURN_SECONDS = 0.002

#: The longest and the shortest time in seconds after which an empty retry topic is asked again. It
#: is a quarter of the time since the last letter. An empty queue costs 25 µs: pulsar-client throws.
_LONGEST = 0.05
_SHORTEST = 0.001

#: The time-out in milliseconds of a receive that does not wait. With 0, an empty queue costs a wait
#: of about 0.06 ms, because Linux rounds such times up.
_NO_WAIT = -1

#: Messages, bytes and milliseconds of a batch without a policy (pulsar-client's defaults).
DEFAULT_BATCH_LIMITS = (-1, 10 * 1024 * 1024, 100)

#: Seconds after which a thread that has nothing to wait for ends.
_IDLE = 1.0

#: Seconds to wait for the end of a thread whose consumer is closed.
_PATIENCE = 2.0


class Stream:
    """Receives from the topic and its retry topic by turns. Any number of threads can receive.

    Attributes:
        fast_receive: The topic's own receive function while its messages arrive steadily and it is
            their turn, otherwise None. A caller can call it with 0 instead of `receive`, and has to
            call `receive` if it finds nothing. So the usual case costs no more than pulsar-client.
        turn_ends: When the retry topic is asked again, by the monotonic clock. Then *fast_receive*
            must not be used.
        polls: Whether pulsar-client fetches messages ahead, so that it can be asked for them.
        ran_dry: Whether the topic had no message for a caller; others set it to False.
    """

    def __init__(self, main: Any, retry: Any, *, clock: Clock, polls: bool = True) -> None:
        """Make the stream of one or two raw consumers.

        Args:
            main: The consumer of the topic.
            retry: The consumer of the retry topic; None if there is none.
            clock: The clock.
            polls: See the class.
        """
        self.ran_dry = False
        self.fast_receive: Callable[[int], Any] | None = None
        self.turn_ends = -math.inf if retry is not None else math.inf
        self.polls = polls
        self._main, self._retry = main, retry
        self._now = clock.monotonic
        self._longest, self._shortest = clock.interval(_LONGEST), clock.interval(_SHORTEST)
        # Until then, letters are read. -inf: there was none when the retry topic was last asked.
        self._letters_until = -math.inf
        self._letter_at = -math.inf
        self._returned: deque[Any] = deque()
        fork.guard(self, "_main", "_retry", "fast_receive")

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, timeout: float | None) -> Any:
        """Return the next raw message, within *timeout* seconds (None: no limit).

        Raises:
            pulsar.Timeout: no message came in time.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        end = math.inf if timeout is None else self._now() + timeout
        while True:
            left = max(0.0, end - self._now())
            if (raw := self.wait(left)) is not None:
                return raw
            if not left:
                raise error_of(_pulsar.Result.Timeout)

    def receive_batch(self, limits: tuple[int, int, int]) -> list[Any]:
        """Return messages until one of *limits* is reached: messages, bytes, ms (≤ 0: no limit).

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        with Batch(limits, self._now, self.give_back) as batch:
            while not batch.is_full:
                batch.add(self.receive(batch.left))
        return batch.messages

    def take(self) -> Any:
        """Return a raw message that is there; None if there is none. It never waits.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        return self.wait(0.0) if self.polls else self.take_returned()

    def wait(self, most: float) -> Any:
        """Wait a moment, *most* seconds at most, for a raw message; return it, or None.

        If pulsar-client does not fetch messages ahead, this waits until one comes.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        if self._returned:
            return self.take_returned()
        if not self.polls:
            return self._main.receive()
        if self._retry is None:
            return self._ask_topic(min(most, self._longest))
        now = self._now()
        is_turn = now >= self.turn_ends or now < self._letters_until
        if is_turn and (raw := self._ask_letters(now)) is not None:
            return raw
        # If there may be letters, or the caller does not wait, an empty topic is left at once.
        waits = most and self._letters_until == -math.inf
        raw = self._ask_topic(min(most, self.turn_ends - now) if waits else 0.0)
        if raw is None and (waits or not is_turn):
            raw = self._ask_letters(self._now())
        return raw

    def _ask_topic(self, seconds: float) -> Any:
        try:
            raw = self._main.receive(max(1, round(seconds * 1000)) if seconds else _NO_WAIT)
        except _pulsar.Timeout:
            self.fast_receive, self.ran_dry = None, True
            return None
        self.fast_receive = self._main.receive
        return raw

    def _ask_letters(self, now: float) -> Any:
        self.fast_receive = None
        try:
            raw = self._retry.receive(_NO_WAIT)
        except _pulsar.Timeout:
            # Letters come in bursts, so the retry topic is asked often after one, and then seldom.
            pause = max(self._shortest, (now - self._letter_at) / 4)
            self._letters_until, self.turn_ends = -math.inf, now + min(pause, self._longest)
            return None
        self._letter_at = now
        if now >= self._letters_until:
            self._letters_until = now + TURN_SECONDS
            self.turn_ends = self._letters_until + TURN_SECONDS
        return raw

    # -- messages that were given back ----------------------------------------------------------

    def give_back(self, raws: Iterable[Any]) -> None:
        """Have the next calls return messages that were received, but are not delivered yet."""
        self._returned.extendleft(reversed(list(raws)))
        self.fast_receive = None

    def take_returned(self) -> Any:
        """Return a message that was given back; None if there is none."""
        with contextlib.suppress(IndexError):
            return self._returned.popleft()
        return None

    def drop(self, is_dropped: Callable[[Any], bool] = lambda _: True) -> None:
        """Drop those messages that were given back for which *is_dropped* returns True."""
        for _ in range(len(self._returned)):
            raw = self.take_returned()
            if raw is not None and not is_dropped(raw):
                self._returned.append(raw)


class Batch:
    """The messages of one batch receive, on a thread or on an event loop.

    As a context manager it ends the receiving: a message that comes too late ends the batch, and
    with any other error all of its messages are given back.

    Attributes:
        messages: The raw messages so far, in order.
    """

    def __init__(
        self,
        limits: tuple[int, int, int],
        now: Callable[[], float],
        give_back: Callable[[list[Any]], None],
    ) -> None:
        """Start a batch.

        Args:
            limits: The limits of messages, bytes and milliseconds. 0 or less means no limit.
            now: The monotonic clock.
            give_back: Called with messages that were received, and are not in the batch.
        """
        self.messages: list[Any] = []
        self._count, self._size, wait = limits
        self._length = 0
        self._now = now
        self._deadline = now() + wait / 1000 if wait > 0 else None
        self._give_back = give_back
        self._has_too_much = False

    @property
    def is_full(self) -> bool:
        """Whether the batch must be returned now."""
        if 0 < self._count <= len(self.messages) or 0 < self._size <= self._length:
            return True
        return self._has_too_much or (bool(self.messages) and self.left == 0)

    @property
    def left(self) -> float | None:
        """How many seconds the batch may still wait, 0 or more; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._now())

    def add(self, raw: Any) -> None:
        """Add a message. If the batch has no room for it, the batch is full."""
        length = raw.length()
        if self.messages and 0 < self._size < self._length + length:
            self._has_too_much = True
            self._give_back([raw])
            return
        self._length += length
        self.messages.append(raw)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is None or issubclass(kind, pulsar.Timeout):
            return True
        self._give_back(self.messages)
        return False


def batch_limits(policy: pulsar.ConsumerBatchReceivePolicy | None) -> tuple[int, int, int]:
    """Return the limits of a batch receive policy: messages, bytes, milliseconds.

    Raises:
        ConfigError: *policy* is not a `pulsar.ConsumerBatchReceivePolicy`.
    """
    if policy is None:
        return DEFAULT_BATCH_LIMITS
    if not isinstance(policy, pulsar.ConsumerBatchReceivePolicy):
        raise ConfigError.bad("batch_receive_policy", policy, "a pulsar.ConsumerBatchReceivePolicy")
    raw = policy.policy()
    return (raw.getMaxNumMessages(), raw.getMaxNumBytes(), raw.getTimeoutMs())


class Fetcher:
    """Waits for a message on a thread of its own, for a caller that must not block.

    The message that it finds is given back to the stream. While the thread waits, the caller must
    take nothing from the stream but what was given back: a message would overtake another.

    Attributes:
        error: Why the thread could not wait; the caller sets it to None.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        is_wanted: Callable[[], bool],
        ended: Callable[[], None],
        clock: Clock,
    ) -> None:
        """Make it; the thread starts when it is needed.

        Args:
            stream: The stream.
            is_wanted: Tells whether anybody still waits; the thread calls it between two waits.
            ended: Called on the thread when it does not wait any more: there is a message, or an
                error, or nobody wants a message.
            clock: The clock.
        """
        self.error: Exception | None = None
        self._stream = stream
        self._is_wanted = is_wanted
        self._ended = ended
        self._clock = clock
        self._changed = clock.condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._is_asked = self._is_closed = False

    def ask(self) -> None:
        """Have the thread wait for a message.

        Raises:
            RuntimeError: no thread can be started.
        """
        with self._changed:
            if self._thread is None:
                # A daemon: the interpreter would wait for another thread before it closes clients.
                thread = self._clock.thread(
                    target=self._run, name="pulsar-retry-receiver", daemon=True
                )
                thread.start()
                self._thread = thread
            self._is_asked = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread. The consumer is closed, so that the thread does not wait for messages.

        A thread inside of C++ would abort the process at exit, before Python 3.14.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(_PATIENCE)

    def _run(self) -> None:
        while self._is_needed():
            raw = None
            try:
                while raw is None and self._is_wanted():
                    raw = self._stream.wait(math.inf)
            except Exception as error:  # noqa: BLE001 - the caller raises it
                self.error = error
            if raw is not None:
                self._stream.give_back([raw])
            self._ended()

    def _is_needed(self) -> bool:
        """Wait until the thread is asked to wait for a message; return False if it has to end."""
        with self._changed:
            while not self._is_asked:
                # It can be asked between the time-out of the wait and its return.
                if self._is_closed or not (self._changed.wait(_IDLE) or self._is_asked):
                    self._thread = None
                    return False
            self._is_asked = False
            return True
