"""Publishes letters one at a time, on a connection that nothing else uses.

A broker refuses a message by closing its connection. An example is a delay above the namespace's
``maxDeliveryDelayInMillis``, a limit that clients cannot read. pulsar-client then reconnects and
sends the message again, about ten times a second and without end. It also sends everything again
that was sent after the message, and the broker stores that each time. Here nothing is sent after
the message.
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

#: Seconds between two checks of the connections.
LOOK = 0.05

#: How many checks must find a connection closed while another one is open. pulsar-client reconnects
#: every 0.1 s, and the broker closes the new connection at once.
CLOSED = 8

#: How many refusals are remembered for a topic.
_MOST = 16

#: Seconds for which letters like a refused one are not tried.
_REFUSED_FOR = 30.0


class RefusedError(Exception):
    """The broker closes the connection when it gets this letter, without giving a reason."""


class Alone:
    """Publishes to one topic and waits for each receipt. Not thread-safe. ``with`` closes it."""

    def __init__(
        self,
        new_client: Callable[[], pulsar.Client],
        topic: str,
        options: dict[str, Any],
        *,
        is_reachable: Callable[[], bool],
        timeout: float,
    ) -> None:
        """Store the arguments; nothing is opened yet.

        Args:
            new_client: Makes the client.
            topic: The topic.
            options: The options of the producer.
            is_reachable: Tells whether other connections to the topic are open.
            timeout: The maximum number of seconds to wait for a receipt.
        """
        self._new_client = new_client
        self._topic = topic
        self._options = options
        self._is_reachable = is_reachable
        self._timeout = timeout
        self._client: pulsar.Client | None = None
        self._producer: Any = None

    def open(self) -> None:
        """Connect, unless it is connected already.

        Raises:
            pulsar.PulsarException: it could not connect.
        """
        if self._client is not None:
            return
        try:
            self._client = self._new_client()
            options = {**self._options, "send_timeout_millis": 0}
            opened = self._client.create_producer(self._topic, **options)
            self._producer = opened._producer  # noqa: SLF001
        except BaseException:
            self.close()  # it also ends pulsar-client's pending attempts
            raise

    def publish(self, message: Any, anew: Callable[[], Any]) -> None:
        """Publish the raw *message*.

        If the connection stays closed, that can be a refusal, or the broker has just come back, and
        pulsar-client still waits before it connects again. So the message is tried on a second
        connection. *anew* builds it again for that, because pulsar-client sends a message once.

        Raises:
            RefusedError: the broker refuses the message, on both connections.
            pulsar.PulsarException: it was not published in time, or for another reason.
        """
        try:
            self._publish_once(message)
        except RefusedError:
            self._publish_once(anew())

    def _publish_once(self, message: Any) -> None:
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
                text = "the separate connection for a letter to %s could not be closed"
                _log.warning(text, self._topic, exc_info=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@attrs.frozen
class Measure:
    """The properties of a letter that a broker can refuse it for.

    Attributes:
        delay: Seconds.
        size: The approximate size in bytes.
    """

    delay: float
    size: int

    def reaches(self, other: Measure) -> bool:
        """Tell whether a broker that refuses *other* for its delay or size refuses this too."""
        return self.delay >= other.delay and self.size >= other.size


class Refusals:
    """Remembers what a topic has refused. Thread-safe.

    The broker does not say whether the delay or the size was too large. So a letter counts as alike
    only if both values are at least as large.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Measure, float] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def has(self, measure: Measure) -> bool:
        """Tell whether a letter like this was ever refused; then it must be published alone."""
        with self._lock:
            return any(measure.reaches(each) for each in self._known)

    def is_fresh(self, measure: Measure, now: float) -> bool:
        """Tell whether a letter like this was refused recently; then it need not be tried."""
        with self._lock:
            known = self._known.items()
            return any(now < until and measure.reaches(each) for each, until in known)

    def add(self, measure: Measure, now: float) -> None:
        """Record a refusal. It replaces refusals of letters with larger values."""
        with self._lock:
            known = {each: u for each, u in self._known.items() if not each.reaches(measure)}
            known[measure] = now + _REFUSED_FOR
            if len(known) > _MOST:
                del known[next(iter(known))]
            self._known = known

    def discard(self, measure: Measure) -> None:
        """Forget refusals of letters with no larger values, because this one was published."""
        with self._lock:
            self._known = {e: u for e, u in self._known.items() if not measure.reaches(e)}
