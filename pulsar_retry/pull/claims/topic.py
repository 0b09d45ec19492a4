"""The topic of the claims: it is read, written, and kept short."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar

from pulsar_retry.errors import ConfigError, shown
from pulsar_retry.pull.rules.claims import ClaimBook
from pulsar_retry.runtime.raw import has_message

_log = logging.getLogger("pulsar_retry")

#: The durable subscription that keeps the topic. Its position is where the topic begins.
KEEPER = "pulsar-retry-claims"

#: Properties of a message: its number among those of its process, who has written it again, and an
#: id behind which everything is that was needed when it was written.
_NUMBER, _COPIED_BY, _FLOOR = "number", "copied_by", "floor"

#: Milliseconds after which a waiting read checks whether it is to end.
_READ_MS = 250

#: Seconds after which a process that still lives has written its record again.
REWRITE_AFTER = 60.0

#: Seconds without a new record after which a process is asked for its connection.
_SILENT = 3 * REWRITE_AFTER


class ClaimTopic:
    """The topic of the claims of one subscription, for one process. Thread-safe.

    A process has one name for its whole life, which is that of its producer. A broker lets only one
    producer of a topic have a name. So who gets the name of another process knows that this process
    has no connection; a process that lives connects again, and then its name is taken.

    Attributes:
        name: The full name of the topic.
        me: The name of this process.
        book: What was read.
        lock: Held while *book* is used.
    """

    def __init__(self, client: pulsar.Client, name: str) -> None:
        """Open the topic, and read it to its end.

        The *client* is for this topic only, because a broker closes the connection on which it
        refuses a message. It is closed together with the topic.

        Raises:
            ConfigError: the topic has several partitions.
            pulsar.PulsarException: the topic cannot be opened.
        """
        self.name = name
        self.me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}".replace(" ", "-")
        self.book = ClaimBook(self.me)
        self.lock = threading.Lock()
        self._client = client
        self._before: dict[str, pulsar.MessageId] = {}
        self._last: pulsar.MessageId | None = None
        self._heard: dict[str, float] = {}
        self._since_trim = 0
        self._is_closed = False
        with contextlib.ExitStack() as opened:
            opened.callback(self._client.close)  # it closes all of them at the same time
            if len(self._client.get_topic_partitions(name)) > 1:
                raise ConfigError.bad("topic", name, "a topic without partitions, for the claims")
            self._keeper = self._client.subscribe(
                name,
                KEEPER,
                pulsar.ConsumerType.Failover,
                receiver_queue_size=1,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            self._producer = self._producer_of(self.me)
            self._reader = self._reader_of_all()
            while has_message(self._reader):
                self._apply(self._reader.read_next(10_000))
            self._closing = opened.pop_all()

    def _reader_of_all(self) -> pulsar.Reader:
        """Return a reader that begins with the oldest message that is needed, or before it."""
        last = self._client.create_reader(
            self.name, pulsar.MessageId.latest, start_message_id_inclusive=True
        )
        with contextlib.closing(last):
            found = last.read_next(10_000) if has_message(last) else None
        floor = None if found is None else found.properties().get(_FLOOR)
        begin = pulsar.MessageId.earliest
        if floor is not None:
            begin = pulsar.MessageId.deserialize(bytes.fromhex(floor))
        return self._client.create_reader(self.name, begin, is_read_compacted=True)

    def close(self) -> None:
        """Close the topic. Claims that were not withdrawn stay."""
        self._is_closed = True
        with contextlib.suppress(pulsar.PulsarException):
            self._closing.close()

    # -- writing ----------------------------------------------------------------------------------

    def publish(self, data: bytes, number: int, failed: Callable[[], None]) -> None:
        """Publish the record of this process; it is stored when it was read again."""

        def sent(result: pulsar.Result, _id: object) -> None:
            if result != pulsar.Result.Ok:
                failed()

        try:
            self._producer.send_async(
                data,
                sent,
                properties={_NUMBER: str(number), **self._floor()},
                partition_key=self.me,
            )
        except pulsar.PulsarException:
            failed()

    def settle(self, process: str, message: str) -> None:
        """Publish that the claim of a dead process for *message* is settled."""

        def sent(result: pulsar.Result, _id: object) -> None:
            if result != pulsar.Result.Ok and not self._is_closed:
                _log.warning("a claim on %s could not be settled: %s", self.name, result)

        with contextlib.suppress(pulsar.PulsarException):
            mark = ClaimBook.mark(process, message)
            self._producer.send_async(
                b"settled", sent, properties=self._floor(), partition_key=mark
            )

    # -- reading ----------------------------------------------------------------------------------

    def read(self) -> tuple[str, int | None] | None:
        """Read the next message; return its key and, if this process has written it, its number.

        Return None if there was none for a moment.

        Raises:
            pulsar.PulsarException: the topic cannot be read.
        """
        try:
            message = self._reader.read_next(_READ_MS)
        except pulsar.Timeout:
            return None
        return self._apply(message)

    def _apply(self, message: Any) -> tuple[str, int | None]:
        key, properties = message.partition_key(), message.properties()
        is_copy = _COPIED_BY in properties
        with self.lock:
            self._since_trim += 1
            self.book.apply(key, message.data())
            self._before.pop(key, None)
            self._heard.pop(key, None)
            if key in self.book.records:
                if self._last is not None:
                    self._before[key] = self._last
                if not is_copy:
                    self._heard[key] = time.monotonic()
            self._last = message.message_id()
        number = properties.get(_NUMBER)
        return key, int(number) if key == self.me and number is not None else None

    def silent_for(self, process: str) -> float:
        """Return for how many seconds *process* has written nothing that was read here."""
        return time.monotonic() - self._heard.get(process, 0.0)

    # -- who lives --------------------------------------------------------------------------------

    def is_gone(self, process: str) -> bool | None:
        """Tell whether *process* has no connection to the topic; None: no broker has answered."""
        try:
            self._producer_of(process).close()
        except pulsar.ProducerBusy:
            return False
        except pulsar.PulsarException as error:
            _log.debug("a process could not be looked for: %s", shown(error))
            return None
        return True

    def _producer_of(self, process: str) -> pulsar.Producer:
        return self._client.create_producer(
            self.name,
            producer_name=process,
            send_timeout_millis=0,  # it must not give up while a broker restarts
            compression_type=pulsar.CompressionType.LZ4,
        )

    # -- keeping it short -------------------------------------------------------------------------

    @property
    def since_trim(self) -> int:
        """How many messages were read since the topic was shortened here."""
        return self._since_trim

    def trim(self, keep: float) -> None:
        """Let the broker delete what is not needed, as far as no record is in the way.

        The records of processes that have been silent for long are written again at the end of the
        topic, under their names, so that they cannot write themselves meanwhile; those older than
        *keep* seconds are given up.
        """
        self._since_trim = 0
        with self.lock:
            silent = [each for each in self.book.records if self.silent_for(each) > _SILENT]
        for process in silent:
            if process != self.me:
                self._write_again(process, keep)
        if (until := self._needless()) is not None:
            try:
                self._keeper.acknowledge_cumulative(until)
            except pulsar.PulsarException as error:
                _log.debug("the topic of claims could not be shortened: %s", shown(error))

    def _needless(self) -> pulsar.MessageId | None:
        """Return the id of the last message before all that are needed; None if none is known."""
        with self.lock:
            oldest = next(iter(self.book.records), None)
            return self._last if oldest is None else self._before.get(oldest)

    def _floor(self) -> dict[str, str]:
        floor = self._needless()
        return {} if floor is None else {_FLOOR: floor.serialize().hex()}

    def _write_again(self, process: str, keep: float) -> None:
        with contextlib.suppress(pulsar.PulsarException):  # it lives, or another does the same
            producer = self._producer_of(process)
            with contextlib.closing(producer):
                data = b""
                with self.lock:
                    if process in self.book.records:
                        record = self.book.rest_of(process)
                        data = record.data if time.time() - record.at < keep else b""
                properties = {_COPIED_BY: self.me, **self._floor()}
                producer.send(data, properties=properties, partition_key=process)
