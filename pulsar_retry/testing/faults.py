"""What is to go wrong in the in-memory broker, and when."""

from __future__ import annotations

import threading
from typing import Any, Literal

import _pulsar
import attrs
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.wire.names import TopicName, logical

#: What becomes of a send.
Kind = Literal["fail", "lose", "crash", "refuse"]


@attrs.define
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: What.
        topic: Where, by full name; None: anywhere.
        error: What is raised.
        wait: How many go well before.
        times: How often it is still to happen.
    """

    kind: Kind
    topic: str | None
    error: type[pulsar.PulsarException]
    wait: int
    times: int


class Faults:
    """A script of faults; `MemoryBroker.faults` is one. Thread-safe.

    Sends and subscriptions are counted from the moment that a fault is asked for, of every client.
    A batch is one send.
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
        """Refuse to store what is sent.

        Args:
            topic: The topic, also a retry or dead-letter topic; None: any.
            nth: Which send from now on is the first to fail.
            times: How many fail in a row.
            error: What is raised, one of pulsar-client's exceptions.

        Raises:
            ConfigError: an argument is not acceptable.
        """
        self._add("fail", topic, nth, times, error)

    def lose_receipt(self, topic: str | None = None, *, nth: int = 1, times: int = 1) -> None:
        """Store what is sent, but let its receipt get lost: the send times out.

        Raises:
            ConfigError: an argument is not acceptable.
        """
        self._add("lose", topic, nth, times, pulsar.Timeout)

    def crash_after_send(self, topic: str | None = None, *, nth: int = 1) -> None:
        """Let the client die that has sent, between the letter's storage and what comes then.

        Nothing of that client reaches the broker any more, its messages go to others, and whatever
        is called on it raises `pulsar.AlreadyClosed`.

        Raises:
            ConfigError: an argument is not acceptable.
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
        """Refuse to let consumers subscribe; arguments as those of `fail_send`.

        Raises:
            ConfigError: an argument is not acceptable.
        """
        self._add("refuse", topic, nth, times, error)

    def clear(self) -> None:
        """Forget what has not happened yet."""
        with self._lock:
            self._script.clear()

    def pending(self) -> int:
        """Return how many faults have not happened yet, or not as often as they are to."""
        with self._lock:
            return len(self._script)

    def on_send(self, topic: str) -> Fault | None:
        """Return what becomes of a send to *topic*; None: it goes well."""
        return self._next(topic, refusals=False)

    def on_subscribe(self, topic: str) -> Fault | None:
        """Return what becomes of a subscription of *topic*; None: it goes well."""
        return self._next(topic, refusals=True)

    def _next(self, topic: str, *, refusals: bool) -> Fault | None:
        with self._lock:
            hit = None
            for fault in list(self._script):
                if (fault.kind == "refuse") != refusals:
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
            raise ConfigError.bad("error", error, "an exception of pulsar-client's")
        if not hasattr(_pulsar.Result, error.__name__):
            raise ConfigError.bad("error", error, "an exception that names one result")
        full = None if topic is None else str(TopicName.parse(topic))
        with self._lock:
            self._script.append(Fault(kind, full, error, nth - 1, times))
