"""Planned faults of the in-memory broker."""

from __future__ import annotations

import threading
from typing import Any, Literal

import _pulsar
import attrs
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.wire.names import TopicName, logical

#: What happens to a send.
Kind = Literal["fail", "lose", "crash", "refuse"]


@attrs.define
class Fault:
    """One planned fault.

    Attributes:
        kind: What happens.
        topic: The full name of the topic; None for any topic.
        error: The error that is raised.
        wait: How many calls succeed before it.
        times: How many more times it happens.
    """

    kind: Kind
    topic: str | None
    error: type[pulsar.PulsarException]
    wait: int
    times: int


class Faults:
    """A list of planned faults; `MemoryBroker.faults` is one. Thread-safe.

    Sends and subscriptions of all clients are counted, from the moment in which a fault is added. A
    batch is one send.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._script: list[Fault] = []

    def fail_send(
        self,
        topic: str | None = None,
        *,
        nth: int = 1,
        times: int = 1,
        error: type[pulsar.PulsarException] = pulsar.Timeout,
    ) -> None:
        """Let a send fail; the message is not stored.

        Args:
            topic: The topic, which may be a retry or dead-letter topic; None for any topic.
            nth: The number of the first send that fails, counted from now on.
            times: How many sends fail in a row.
            error: The error that is raised, one of pulsar-client's exceptions.

        Raises:
            ConfigError: an argument is invalid.
        """
        self._add("fail", topic, nth, times, error)

    def lose_receipt(self, topic: str | None = None, *, nth: int = 1, times: int = 1) -> None:
        """Store the message of a send, but lose its receipt: the send times out.

        For the arguments, see `fail_send`.

        Raises:
            ConfigError: an argument is invalid.
        """
        self._add("lose", topic, nth, times, pulsar.Timeout)

    def crash_after_send(self, topic: str | None = None, *, nth: int = 1) -> None:
        """Let the client die just after the broker has stored its message.

        After that, nothing of this client reaches the broker, its messages go to other consumers,
        and every call on it raises `pulsar.AlreadyClosed`. For the arguments, see `fail_send`.

        Raises:
            ConfigError: an argument is invalid.
        """
        self._add("crash", topic, nth, 1, pulsar.AlreadyClosed)

    def refuse_subscribe(
        self,
        topic: str | None = None,
        *,
        nth: int = 1,
        times: int = 1,
        error: type[pulsar.PulsarException] = pulsar.AuthorizationError,
    ) -> None:
        """Let the broker refuse a subscription. For the arguments, see `fail_send`.

        Raises:
            ConfigError: an argument is invalid.
        """
        self._add("refuse", topic, nth, times, error)

    def clear(self) -> None:
        """Remove the faults that have not happened yet."""
        with self._lock:
            self._script.clear()

    def pending(self) -> int:
        """Return how many faults have not happened yet, or not often enough."""
        with self._lock:
            return len(self._script)

    def happens(self, topic: str, *, on_send: bool) -> Fault | None:
        """Return the fault of a send, or of a subscription, to *topic*; None if it succeeds."""
        with self._lock:
            hit = None
            for fault in list(self._script):
                if (fault.kind != "refuse") != on_send:
                    continue
                if fault.topic is not None and fault.topic not in {topic, logical(topic)}:
                    continue
                if fault.wait:
                    fault.wait -= 1
                elif hit is None:
                    hit = fault
                    fault.times -= 1
                    if not fault.times:
                        self._script.remove(fault)
            return hit

    def _add(self, kind: Kind, topic: Any, nth: Any, times: Any, error: Any) -> None:
        whole("nth", nth)
        whole("times", times)
        if not (isinstance(error, type) and issubclass(error, pulsar.PulsarException)):
            raise ConfigError.bad("error", error, "an exception class of pulsar-client")
        if not hasattr(_pulsar.Result, error.__name__):
            raise ConfigError.bad("error", error, "an exception class for one result")
        full = None if topic is None else str(TopicName.parse(topic))
        with self._lock:
            self._script.append(Fault(kind, full, error, nth - 1, times))
