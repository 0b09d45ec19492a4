"""Assertions about what happened to messages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.testing.memory.broker import MemoryBroker
from pulsar_retry.testing.payloads import payload_of
from pulsar_retry.wire.dead_letter import DeadLetter
from pulsar_retry.wire.names import Naming
from pulsar_retry.wire.properties import RetryProperties


def assert_retried(
    broker: MemoryBroker,
    topic: str,
    subscription: str,
    *,
    delays: Sequence[Duration],
    data: Any = None,
    naming: Naming = Naming.PULSAR,
) -> None:
    """Assert that a subscription's retry letters have exactly these delays, in this order.

    Args:
        broker: The broker.
        topic: The topic.
        subscription: The subscription.
        delays: Seconds or timedeltas, one for each retry letter. An empty list asserts that nothing
            was retried.
        data: Check only letters with this payload, as for `MemoryBroker.send`; None checks all.
        naming: How the retry topic is named.

    Raises:
        AssertionError: the letters have other delays.
        ConfigError: a value in *delays* is not a delay, the subscription never existed, or nothing
            with this payload was ever published.
    """
    wanted = [seconds("delays", delay) for delay in delays]
    payload = _published(broker, topic, subscription, data)
    letters = [
        letter
        for letter in broker.retry_letters(topic, subscription, naming=naming)
        if payload is None or letter.data() == payload
    ]
    found = [RetryProperties.of(letter).delay or 0.0 for letter in letters]
    if not _are_close(found, wanted):
        raise AssertionError(f"expected the delays {_shown(wanted)}, but they are {_shown(found)}")


def assert_redelivered(
    broker: MemoryBroker,
    topic: str,
    subscription: str,
    *,
    delays: Sequence[Duration],
    data: Any = None,
) -> None:
    """Assert after which delays messages were redelivered, as by negative acknowledgements.

    Args:
        broker: The broker.
        topic: The topic.
        subscription: The subscription.
        delays: Seconds or timedeltas between one delivery and the next. An empty list asserts that
            there was no redelivery.
        data: Check only messages with this payload, as for `MemoryBroker.send`; None checks all.

    Raises:
        AssertionError: the delays are different.
        ConfigError: a value in *delays* is not a delay, the subscription never existed, or nothing
            with this payload was ever published.
    """
    wanted = [seconds("delays", delay) for delay in delays]
    payload = _published(broker, topic, subscription, data)
    times: dict[str, list[float]] = {}
    for each in broker.deliveries(topic, subscription):
        if payload is None or each.message.data() == payload:
            times.setdefault(str(each.message.message_id()), []).append(each.at)
    found = [
        later - earlier for each in times.values() for earlier, later in itertools.pairwise(each)
    ]
    if not _are_close(found, wanted):
        raise AssertionError(
            f"expected redeliveries after {_shown(wanted)}, but they came after {_shown(found)}"
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


def _published(broker: MemoryBroker, topic: str, subscription: str, data: Any) -> bytes | None:
    """Return the payload, after a check that the subscription and the message exist.

    Without them any test would pass.

    Raises:
        ConfigError: there never was such a subscription, or such a message.
    """
    broker.check(topic, subscription)
    if data is None:
        return None
    payload, published = payload_of(data), {each.data() for each in broker.messages(topic)}
    if payload not in published:
        accepted = f"the payload of a message that was published to {topic!r}: {sorted(published)}"
        raise ConfigError.bad("data", data, accepted)
    return payload


def _are_close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Tell whether the delays are equal to the millisecond, which is the precision of letters."""
    return len(found) == len(wanted) and all(
        math.isclose(a, b, abs_tol=0.001) for a, b in zip(found, wanted, strict=True)
    )


def _shown(delays: Sequence[float]) -> str:
    return "[" + ", ".join(f"{timedelta(seconds=round(each, 3))}" for each in delays) + "]"
