"""Publishes letters one at a time, to find the one that the broker refuses.

A broker refuses a message by closing its connection. An example is a delay above the namespace's
``maxDeliveryDelayInMillis``, a limit that clients cannot read. pulsar-client then reconnects and
sends the message again, about ten times a second and without end. It also sends everything again
that was sent after the message, and the broker stores that each time. Here nothing is sent after
the message, and the producer that has lost its connection is closed. If a second one loses its
connection too, the broker refuses the message: it works, because it has opened both producers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import _pulsar

from pulsar_retry.consumer.handoff.producers import LetterProducers, Outlet
from pulsar_retry.consumer.handoff.sending import Build, CallbackSender, Flight
from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.upstream import PRODUCER_GONE
from pulsar_retry.runtime.worker import Worker

#: Seconds between two looks at a connection. pulsar-client leaves it closed for at least 0.1 s.
LOOK = 0.02

#: How many producers have to lose their connections.
_LOSSES = 2


class RefusedError(Exception):
    """The broker closes the connection when it gets this message, without giving a reason."""


def publish_alone(
    open_: Callable[[], Any], build: Callable[[], Any], is_over: Callable[[], bool]
) -> tuple[_pulsar.Result, Any]:
    """Publish one message with nothing behind it; return the result, and a producer that works.

    Args:
        open_: Returns a raw producer that has nothing in flight; called again if that is lost.
        build: Returns the raw message; called for each producer, which sends a message once.
        is_over: Tells whether nobody waits any longer.

    Raises:
        RefusedError: the broker refuses the message.
        Exception: a producer could not be opened.
    """
    for _ in range(_LOSSES):
        raw, results = open_(), SimpleQueue[_pulsar.Result]()
        raw.send_async(build(), lambda result, _, results=results: results.put(result))
        is_connected = True
        while is_connected and not is_over():
            is_connected = raw.is_connected()  # first: the result can come before the loss
            with suppress(Empty):
                return results.get(timeout=LOOK), raw
        raw.close_async(lambda _: None)
        if is_over():
            return _pulsar.Result.Timeout, None
    raise RefusedError


class SingleFile:
    """The letters of a hand-off that go out one in flight at a time, on one thread. Thread-safe.

    Letters that are not suspect do not go this way.
    """

    def __init__(self, producers: LetterProducers, build: Build, clock: Clock) -> None:
        self._producers = producers
        self._build = build
        self._now = clock.monotonic
        self._worker = Worker("pulsar-retry-alone", clock)
        self._lock = threading.Lock()
        self._left = 0
        # What has sent the letter before, and the outlet of that letter.
        self._sender: CallbackSender | None = None
        self._outlet: Outlet | None = None

    def add(self, flights: Iterable[Flight]) -> None:
        """Publish the letters of *flights* after those before them; each flight has an end.

        Raises:
            RuntimeError: no thread can be started, and nothing was added.
            ConsumerClosedError: the consumer is closed.
        """
        for flight in flights:
            with self._lock:
                if not self._worker.submit(partial(self._run, flight)):
                    raise ConsumerClosedError("the consumer is closed")
                self._left += 1

    def close(self) -> None:
        """End the thread, after the letters that were added."""
        self._worker.close(0.0)

    def _run(self, flight: Flight) -> None:
        try:
            self._publish(flight, flight.outlet)
        except BaseException as error:  # noqa: BLE001 - the flight must have an end
            flight.hand_off.finish([flight], error)
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._abandon()

    def _publish(self, flight: Flight, outlet: Outlet) -> None:
        if flight.is_over:
            return
        if (answer := outlet.answer(flight, self._now())) is not None:
            raise answer
        with self._producers.alone:
            try:
                result, raw = publish_alone(
                    lambda: self._opened(outlet),
                    lambda: self._build(flight),
                    lambda: flight.is_over,
                )
            except RefusedError:
                self._sender = None
                raise outlet.refused(flight, self._now()) from None
        if raw is None or result in PRODUCER_GONE:
            self._sender = None
        if result == _pulsar.Result.Ok:
            outlet.accepted(flight)
        flight.has_receipt(result)

    def _opened(self, outlet: Outlet) -> Any:
        """Return a producer: that of the letter before, if it still works."""
        sender = self._sender
        if sender is None or self._outlet is not outlet or not sender.raw.is_connected():
            self._abandon()
            self._sender = sender = self._producers.open_another(outlet)
            self._outlet = outlet
        return sender.raw

    def _abandon(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.abandon()
