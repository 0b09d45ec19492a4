"""A reader of the in-memory broker, in place of `_pulsar.Reader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import _pulsar

from pulsar_retry.runtime.upstream import error_of
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.memory.callbacks import QuietLock, later
from pulsar_retry.testing.memory.message import RawMessage
from pulsar_retry.testing.memory.topic import Topic

_Result = _pulsar.Result


class ReaderWorld(Protocol):
    """The part of the broker that its readers use."""

    clock: VirtualClock
    guard: QuietLock
    readers: list[RawReader]


class RawReader:
    """Reads a topic from its own position, and acknowledges nothing. Thread-safe."""

    def __init__(self, world: ReaderWorld, topic: Topic, start: Any, conf: Any) -> None:
        self._world = world
        self._topic = topic
        self._inclusive = conf.start_message_id_inclusive()
        self._changed = world.clock.condition()
        self._asked: deque[Callable[[Any, Any], object]] = deque()
        self._is_closed = False
        self._position = self._behind(start)
        world.readers.append(self)

    def _behind(self, where: Any) -> tuple[int, int]:
        """Return the numbers of the next entry, and of the next message in it."""
        topic = self._topic
        if isinstance(where, int):
            return topic.position_at(where), 0
        if where == _pulsar.MessageId.latest:
            at = len(topic.entries)
            return (max(0, at - 1), 0) if self._inclusive else (at, 0)
        number, index = topic.position(where), max(0, where.batch_index())
        if self._inclusive or where.ledger_id() != topic.ledger:
            return number, index
        return number, index + 1

    def _peek(self) -> tuple[RawMessage, tuple[int, int]] | None:
        """Return the next message, and the position after it."""
        number, index = self._position
        while number < len(self._topic.entries):
            messages = self._topic.entries[number].messages
            if index < len(messages):
                return RawMessage.of(messages[index]), (number, index + 1)
            number, index = number + 1, 0
        return None

    def stored(self) -> None:
        """Note that a message was stored: answer waiting reads."""
        with self._changed:
            self._changed.notify_all()
        self._answer()

    def read_next_async(self, callback: Callable[[Any, Any], object]) -> None:
        """Call *callback* with the next message."""
        with self._changed:
            self._asked.append(callback)
        self._answer()

    def _answer(self) -> None:
        """Call the waiting callbacks for which there are messages."""
        while True:
            with self._changed:
                found = self._peek()
                if not self._asked or (found is None and not self._is_closed):
                    return
                callback = self._asked.popleft()
                if self._is_closed or found is None:
                    result, message = _Result.AlreadyClosed, None
                else:
                    result = _Result.Ok
                    message, self._position = found
            callback(result, message)

    def read_next(self, timeout_millis: int | None = None) -> RawMessage:
        """Return the next message, within *timeout_millis* milliseconds."""
        clock = self._world.clock
        end = None if timeout_millis is None else clock.monotonic() + timeout_millis / 1000
        with self._changed:
            while (found := self._peek()) is None:
                self._check_open()
                left = None if end is None else end - clock.monotonic()
                if left is not None and left <= 0:
                    raise error_of(_Result.Timeout)
                self._changed.wait(left)
            self._check_open()
            message, self._position = found
            return message

    def has_message_available(self) -> bool:
        """Tell whether there is another message."""
        self._check_open()
        return self._peek() is not None

    def seek(self, where: Any) -> None:
        """Continue at an id, or at a time in milliseconds since 1970."""
        self._check_open()
        with self._changed:
            self._position = self._behind(where)
            self._changed.notify_all()
        self._answer()

    def close(self) -> None:
        """Close the reader."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with self._world.guard:
            if self in self._world.readers:
                self._world.readers.remove(self)
        self._answer()

    lose = close

    def is_connected(self) -> bool:
        """Tell whether the reader is open."""
        return not self._is_closed

    def topic(self) -> str:
        """Return the topic."""
        return self._topic.name

    def _check_open(self) -> None:
        if self._is_closed:
            raise error_of(_Result.AlreadyClosed)

    close_async = later(close)
    has_message_available_async = later(has_message_available, gives=True)
    seek_async = later(seek)
