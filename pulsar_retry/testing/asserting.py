"""Assertions about what happened to messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.testing.memory.broker import MemoryBroker
from pulsar_retry.testing.payloads import payload_of
from pulsar_retry.wire.dead_letter import DeadLetter
from pulsar_retry.wire.names import Naming


def assert_attempts(
    broker: MemoryBroker,
    topic: str,
    subscription: str,
    *,
    delays: Sequence[Duration],
    data: Any = None,
    key: str | None = None,
    naming: Naming = Naming.PULSAR,
) -> None:
    """Assert how often messages were attempted, and which delays were between the attempts.

    It does not matter how they were retried: by letters, by negative acknowledgements or in lanes.

    Args:
        broker: The broker.
        topic: The topic.
        subscription: The subscription.
        delays: Seconds or timedeltas: the delay of each retry, in order. An empty list asserts that
            there was one attempt.
        data: The payload of the messages, as for `MemoryBroker.send`. Each message with this
            payload must have had these attempts.
        key: The key or the ordering key of the messages, instead of *data*.
        naming: How the retry topic is named.

    Raises:
        AssertionError: the delays are different, or no attempt of a message has ended yet.
        ConfigError: a value in *delays* is not a delay, not exactly one of *data* and *key* is
            given, the subscription never existed, or no such message was ever published.
    """
    wanted = [seconds("delays", delay) for delay in delays]
    if (data is None) == (key is None):
        raise ConfigError.bad("key", key, "exactly one of data and key")
    broker.check(topic, subscription)
    for message in _published(broker, topic, data, key):
        found = broker.retry_delays(topic, subscription, message, naming=naming)
        if found is None:
            raise AssertionError(f"no attempt of {message.data()!r} by {subscription!r} has ended")
        if not _are_close(found, wanted):
            raise AssertionError(
                f"expected the delays {_shown(wanted)} of {message.data()!r}, but they are "
                f"{_shown(found)}"
            )


def assert_dead_lettered(
    broker: MemoryBroker,
    topic: str,
    subscription: str,
    *,
    data: Sequence[Any],
    reason: str | None = None,
    naming: Naming = Naming.PULSAR,
) -> None:
    """Assert that exactly these payloads are in a subscription's dead-letter topic, in any order.

    Args:
        broker: The broker.
        topic: The topic.
        subscription: The subscription.
        data: The payloads, as for `MemoryBroker.send`. An empty list asserts that nothing was
            dead-lettered.
        reason: The reason that every dead letter must have; None accepts any.
        naming: How the dead-letter topic is named.

    Raises:
        AssertionError: the payloads or reasons are different.
        ConfigError: the subscription never existed.
    """
    broker.check(topic, subscription)
    letters = broker.dead_letters(topic, subscription, naming=naming)
    found = sorted(letter.data() for letter in letters)
    wanted = sorted(map(payload_of, data))
    if found != wanted:
        raise AssertionError(f"expected the dead letters {wanted}, but they are {found}")
    if reason is not None:
        reasons = sorted({str(reason_of(letter)) for letter in letters} - {reason})
        if reasons:
            raise AssertionError(f"expected the reason {reason!r}, but some give {reasons}")


def reason_of(letter: Any) -> str | None:
    """Return why a dead letter is dead; None if the letter does not give it."""
    return DeadLetter.of(letter).failure.reason


def _published(broker: MemoryBroker, topic: str, data: Any, key: str | None) -> list[Any]:
    """Return the messages of a topic with this payload or key.

    Raises:
        ConfigError: there never was such a message.
    """
    published, known = broker.messages(topic), list[Any]()
    if key is not None:
        found = [each for each in published if key in {each.partition_key(), each.ordering_key()}]
        known = sorted({each.ordering_key() or each.partition_key() for each in published})
    else:
        payload = payload_of(data)
        found = [each for each in published if each.data() == payload]
        known = sorted({each.data() for each in published})
    if not found:
        name, value = ("data", data) if key is None else ("key", key)
        accepted = f"that of a message that was published to {topic!r}: {known}"
        raise ConfigError.bad(name, value, accepted)
    return found


def _are_close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Tell whether the delays are equal to the millisecond, which is the precision of letters."""
    return len(found) == len(wanted) and all(
        math.isclose(a, b, abs_tol=0.001) for a, b in zip(found, wanted, strict=True)
    )


def _shown(delays: Sequence[float]) -> str:
    return "[" + ", ".join(f"{timedelta(seconds=round(each, 3))}" for each in delays) + "]"
