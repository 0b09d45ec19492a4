"""Publishing letters one at a time through a connection that nothing else uses.

A broker refuses a message by closing its connection: one whose delay is above the namespace's
``maxDeliveryDelayInMillis``, for example, a limit that clients are not told. pulsar-client connects
again and sends the message again, some ten times a second and without an end, and with it whatever
was sent after it, which is stored each time. Here nothing is sent after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import _pulsar
import attrs
import pulsar

from pulsar_retry.runtime.exiting import keep_until_exit
from pulsar_retry.runtime.results import error_of

_log = logging.getLogger("pulsar_retry")

#: Seconds between two looks at the connections.
LOOK = 0.05

#: So many looks have to find a connection closed while another one is open. pulsar-client connects
#: anew every 0.1 s, and is refused at once.
CLOSED = 8

#: Refusals that are remembered for a topic.
_MOST = 16

#: Seconds in which letters like one that was refused are not tried.
_REFUSED_FOR = 30.0


class RefusedError(Exception):
    """The broker closes the connection when it gets this letter, and tells clients no reason."""


class Alone:
    """Publishes to one topic, waiting for each receipt. Not thread-safe; closed after ``with``."""

    def __init__(
        self,
        new_client: Callable[[], pulsar.Client],
        topic: str,
        options: dict[str, Any],
        *,
        is_reachable: Callable[[], bool],
        timeout: float,
    ) -> None:
        """Open nothing yet.

        Args:
            new_client: Makes the client.
            topic: The topic.
            options: Those of the producer.
            is_reachable: Tells whether others are connected to the topic.
            timeout: Seconds to wait for a receipt at most.
        """
        self._new_client = new_client
        self._topic = topic
        self._options = options
        self._is_reachable = is_reachable
        self._timeout = timeout
        self._client: pulsar.Client | None = None
        self._producer: Any = None

    def open(self) -> None:
        """Connect, unless it is connected.

        Raises:
            pulsar.PulsarException: it cannot.
        """
        if self._client is not None:
            return
        try:
            self._client = self._new_client()
            options = {**self._options, "send_timeout_millis": 0}
            opened = self._client.create_producer(self._topic, **options)
            self._producer = opened._producer  # noqa: SLF001
        except BaseException:
            self.close()  # which ends what pulsar-client still tries
            raise

    def publish(self, message: Any) -> None:
        """Publish the raw *message*.

        Raises:
            RefusedError: the broker refuses it.
            pulsar.PulsarException: it was not published in time, or for another reason.
        """
        self.open()
        try:
            self._publish(message)
        except BaseException:
            self.close()
            raise

    def _publish(self, message: Any) -> None:
        answers: list[_pulsar.Result] = []
        answered = threading.Event()

        def answer(result: _pulsar.Result, _message_id: Any) -> None:
            answers.append(result)
            answered.set()

        self._producer.send_async(message, answer)
        deadline = time.monotonic() + self._timeout
        closed = 0
        while not answered.wait(LOOK):
            if time.monotonic() >= deadline:
                raise error_of(_pulsar.Result.Timeout)
            closed += not self._producer.is_connected() and self._is_reachable()
            if closed >= CLOSED:
                raise RefusedError
        if answers[0] != _pulsar.Result.Ok:
            raise error_of(answers[0])

    def close(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            keep_until_exit(client._client)  # noqa: SLF001
            # `shutdown` would hold the interpreter's lock while it waits for threads that need it.
            try:
                client.close()
            except pulsar.PulsarException:
                text = "the connection of its own of a letter to %s was not closed"
                _log.warning(text, self._topic, exc_info=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@attrs.frozen
class Measure:
    """What a broker may find too much about a letter.

    Attributes:
        delay: Seconds.
        size: Bytes, more or less.
    """

    delay: float
    size: int

    def reaches(self, other: Measure) -> bool:
        """Tell whether what refuses *other* for its delay or its size refuses this, too."""
        return self.delay >= other.delay and self.size >= other.size


class Refusals:
    """Remembers what a topic has refused. Thread-safe.

    Nobody says whether the delay or the size was too much, so only a letter that has no less of
    both counts as alike.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Measure, float] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def has(self, measure: Measure) -> bool:
        """Tell whether a letter like this one was refused at any time; then it is to go alone."""
        with self._lock:
            return any(measure.reaches(each) for each in self._known)

    def is_fresh(self, measure: Measure, now: float) -> bool:
        """Tell whether one like this was refused a moment ago, so that it need not be tried."""
        with self._lock:
            known = self._known.items()
            return any(now < until and measure.reaches(each) for each, until in known)

    def add(self, measure: Measure, now: float) -> None:
        """Take note of a refusal, which says more than those of letters that have more of both."""
        with self._lock:
            known = {each: u for each, u in self._known.items() if not each.reaches(measure)}
            known[measure] = now + _REFUSED_FOR
            if len(known) > _MOST:
                del known[next(iter(known))]
            self._known = known

    def discard(self, measure: Measure) -> None:
        """Forget the refusals of letters that have no more of both than this one, which is out."""
        with self._lock:
            self._known = {e: u for e, u in self._known.items() if not measure.reaches(e)}
