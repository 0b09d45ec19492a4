"""The log of claims of one subscription: this process reads it whole, and writes to it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.handoff.initial_subscription import (
    InitialSubscription,
    letter_client_of,
)
from pulsar_retry.errors import ConfigError, about, noting, shown
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.pull.rules.held_keys import ClaimView
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.results import error_of
from pulsar_retry.runtime.worker import side_by_side
from pulsar_retry.wire.lanes import LaneClaim, Record, Removed, decode, encode

_log = logging.getLogger("pulsar_retry")

#: The subscription that keeps the log, as that of dead letters.
SUBSCRIPTION = "pulsar-retry"

#: Seconds between two looks at the end of the log: while messages wait for it, while keys are held,
#: and otherwise. A message that is received ends such a pause.
_PAUSE, _IDLE_PAUSE, _QUIET_PAUSE = 0.002, 0.1, 5.0

#: Seconds before another attempt, if the log cannot be read or written.
_TROUBLE_PAUSE = 0.5

_READ_MS = 5000


class ClaimLog:
    """Reads and writes the log. Thread-safe.

    A message may be handled only when this process has read the log as far as it went when the
    message was received: `ticket` at that time, and `passed` later.

    Attributes:
        view: What the log says. Use it while holding *lock*.
        lock: Guards the view, and what is decided by it.
        changed: Called with each key that a new record is about, on the thread of the log. It may
            not block.
        looked: Called after each look at the end of the log, on the same thread.
        cut: Called on this thread when the log cannot be read because there is no connection.
        refused: Called, on any thread, with the error if the log can never be written again.
        wrote: Called when a record is stored, on a thread of pulsar-client. It may not block.
        passed: The last look at the end of the log that was completed.
        troubles: Why the log cannot be read or written now, by the verb.
    """

    def __init__(self, client: Client, topic: str, clock: Clock = SYSTEM) -> None:
        """Make one; it is not open yet."""
        self.topic = topic
        self.view = ClaimView()
        self.lock = threading.RLock()
        self.changed: list[Callable[[str], None]] = []
        self.looked: list[Callable[[], None]] = []
        self.cut: list[Callable[[], None]] = []
        self.refused: Callable[[BaseException], object] = lambda _error: None
        self.wrote: Callable[[], object] = lambda: None
        self.passed = 0
        self.troubles: dict[str, str] = {}
        self._client = client
        self._clock = clock
        self._limiter = LogLimiter(now=clock.monotonic)
        self._condition = clock.condition()
        self._idle_pause = clock.interval(_IDLE_PAUSE)
        self._quiet_pause = clock.interval(_QUIET_PAUSE)
        self._begun = 0
        self._wanted = 0
        self._is_closed = False
        self._reader: Any = None
        self._producer: Any = None
        self._thread: threading.Thread | None = None
        self._ended = clock.event()
        self._again: deque[tuple[Record, bool, Callable[[], None]]] = deque()
        self._again_at = 0.0

    def open(self) -> None:
        """Open the log, and read it to its end. Blocks. Once it is open, this does nothing.

        Raises:
            ConfigError: the topic has partitions.
            pulsar.PulsarException: the broker was not reached, or refuses access.
        """
        if self._thread is None:
            with about(self.topic):
                self._open()

    def _open(self) -> None:
        if len(self._client.get_topic_partitions(self.topic)) > 1:
            accepted = (
                "a topic without partitions: create it before, if the broker's default is other"
            )
            raise ConfigError.bad("the log of the lanes", self.topic, accepted)
        self._close_both()  # another attempt may have ended half-way
        self._producer = self._opened_producer()
        self.keep()
        self._reader = self._opened_reader()
        self._read()
        self._thread = self._clock.thread(target=self._run, name="pulsar-retry-lanes", daemon=True)
        self._thread.start()

    def _opened_producer(self) -> Any:
        letters = letter_client_of(self._client)
        return letters.create_producer(self.topic, batching_enabled=False)

    def keep(self) -> None:
        """Create the subscription that keeps the log, if there is none.

        Open a producer before: if the topic is terminated, a consumer breaks the connection.
        """
        InitialSubscription(self._client, SUBSCRIPTION).create(self.topic)

    def _opened_reader(self) -> Any:
        earliest = pulsar.MessageId.earliest
        return self._client.create_reader(self.topic, earliest, is_read_compacted=True)

    def read_anew(self) -> ClaimView:
        """Return what somebody sees who opens the log now. Blocks.

        Raises:
            pulsar.TopicTerminated: nothing can be written any more.
            pulsar.PulsarException: the broker was not reached, or refuses access.
        """
        with about(self.topic):
            self._opened_producer().close()
            self.keep()
            view, reader = ClaimView(), self._opened_reader()
            try:
                for record in _records(reader):
                    view.apply(record)
            finally:
                reader.close()
        return view

    def is_reachable(self) -> bool:
        """Tell whether a broker answers, as far as is known."""
        return bool(self._reader.is_connected() or self._producer.is_connected())

    def close(self) -> None:
        """Stop to read. Records that are being written are still written."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        if self._thread is not None:
            self._ended.wait()  # with the clock, which may be virtual
            self._thread.join()
        self._close_both()

    def _close_both(self) -> None:
        both = [each.close for each in (self._reader, self._producer) if each is not None]
        try:
            side_by_side(both, threads=self._client._new_client is not None)  # noqa: SLF001
        except pulsar.PulsarException:
            _log.debug("the log of the lanes could not be closed", exc_info=True)

    # -- reading ----------------------------------------------------------------------------------

    def ticket(self) -> int:
        """Return the number of a look at the end of the log that has not begun yet."""
        if self._wanted <= self._begun:
            with self._condition:
                self._wanted = self._begun + 1
                self._condition.notify_all()
        return self._begun + 1

    def _pause(self) -> float:
        """Return the seconds until the next look, if no message waits."""
        with self.lock:
            is_quiet = not (len(self.view) or self.view.orders or self._again or self.troubles)
        return self._quiet_pause if is_quiet else self._idle_pause

    def _run(self) -> None:
        try:
            self._look()
        finally:
            self._ended.set()

    def _look(self) -> None:
        while True:
            pause = self._pause()
            with self._condition:
                if self._wanted <= self._begun and not self._is_closed:
                    self._condition.wait(pause)
                if self._is_closed:
                    return
                self._begun += 1
                begun = self._begun
            try:
                self._write_again()
                self._read()
            except Exception as error:  # noqa: BLE001 - the next look tries again
                self._report("read", error)
                for cut in self.cut:  # a deleted topic can refuse requests without a cut
                    self._act(cut)
                self._clock.sleep(_TROUBLE_PAUSE)
                continue
            self.passed = begun
            self.troubles.pop("read", None)
            for look in self.looked:
                self._act(look)
            self._clock.sleep(_PAUSE)

    def _read(self) -> None:
        """Read to the end.

        Without a connection, pulsar-client would wait for one: then `close` could not end the
        thread, and a process that ends while its thread waits there is aborted.
        """
        if not self._reader.is_connected():
            raise pulsar.NotConnected("there is no connection")
        for record in _records(self._reader):
            with self.lock:
                lane = self.view.apply(record)
            for change in self.changed:
                self._act(change, lane)

    def _act(self, act: Callable[..., None], *arguments: str) -> None:
        try:
            act(*arguments)
        except Exception:  # noqa: BLE001 - the thread must go on
            _log.exception("the lanes have an error")

    def _report(self, verb: str, error: BaseException) -> None:
        self.troubles[verb] = shown(error)
        if (turn := self._limiter.turn(verb)) is not None:
            text = "the log of the lanes %s cannot be %s, and messages wait for it: %s%s"
            _log.warning(text, self.topic, verb, shown(error), turn)

    # -- writing ----------------------------------------------------------------------------------

    def write(
        self, record: Record, *, removed: bool = False, stored: Callable[[], None] = lambda: None
    ) -> None:
        """Write a record, or remove it. If that fails, it is tried again.

        Args:
            record: The record.
            removed: Whether to remove it.
            stored: Called when it is stored, on a thread of pulsar-client. It may not block.
        """
        with self.lock:  # an older record with this key, written again later, would replace it
            for each in [each for each in self._again if each[0].key == record.key]:
                self._again.remove(each)
        self._send(record, removed, stored)

    def _send(self, record: Record, removed: bool, stored: Callable[[], None]) -> None:
        def ended(result: Any, _message_id: object) -> None:
            if result == pulsar.Result.Ok:
                self.troubles.pop("written", None)
                self.wrote()
                self._act(stored)
            else:
                failed(error_of(result))

        def failed(error: BaseException) -> None:
            if isinstance(error, pulsar.TopicTerminated):
                self.refused(noting(error, self.topic))
            else:
                self._report("written", error)
            with self.lock:
                self._again_at = self._clock.monotonic() + _TROUBLE_PAUSE
                self._again.append((record, removed, stored))
            with self._condition:
                self._condition.notify_all()

        try:
            payload = b"" if removed else encode(record)
            self._producer.send_async(payload, ended, partition_key=record.key)
        except Exception as error:  # noqa: BLE001 - as above
            failed(error)

    def _write_again(self) -> None:
        """Write what could not be written. A claim that was stored nevertheless stays as it is."""
        if not self._again or self._clock.monotonic() < self._again_at:
            return
        for _ in range(len(self._again)):
            with self.lock:
                if not self._again:
                    return
                record, removed, stored = self._again.popleft()
                is_live = self.view.is_live
                is_there = isinstance(record, LaneClaim) and is_live(record.lane, record.id)
                if removed or not is_there:
                    self._send(record, removed, stored)


def _records(reader: Any) -> Iterator[Record | Removed]:
    """Yield what a reader has not read yet, up to the end of the log."""
    while reader.has_message_available():
        message = reader.read_next(_READ_MS)
        record = decode(message.partition_key(), message.data())
        if record is not None:
            yield record
    if not reader.is_connected():  # then pulsar-client may have said that this is the end
        raise pulsar.NotConnected("there is no connection")
