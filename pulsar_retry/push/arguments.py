"""Checks the arguments of a dispatcher; each invalid one raises `ConfigError`. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import Immediate
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.rules.flow import RESUME, FlowControl
from pulsar_retry.pull.rules.rate import RateLimit
from pulsar_retry.push.http import ACKS
from pulsar_retry.push.pacing.pacer import in_hand
from pulsar_retry.push.pacing.window import EXPONENTIAL_UP_TO, Window

#: Pub/Sub's ``ack_deadline_seconds``.
SHORTEST, LONGEST, USUAL = 10.0, 600.0, 10.0

#: How many messages pulsar-client fetches ahead, unless the user says a number.
_FETCHED = 100

#: The range of statuses that can be the last ones of an answer.
_LOWEST, _HIGHEST = 200, 599


T = TypeVar("T")


def policy_of(policy: RetryPolicy | None, dead_letter_policy: object | None) -> RetryPolicy:
    """Return the policy for the subscriber. Without one, a failed message comes back at once."""
    if policy is not None:
        return policy
    return RetryPolicy(
        max_attempts=math.inf if dead_letter_policy is None else None,
        backoff=Immediate(),
    )


def flow_control_for(window: Window, rate: RateLimit | None) -> FlowControl:
    """Return a flow control that never holds back messages that the window lets pass.

    With a rate, no more messages are fetched ahead than those of a second.
    """
    return FlowControl(
        max(EXPONENTIAL_UP_TO, math.ceil(in_hand(window.maximum) / RESUME)),
        prefetch=_FETCHED if rate is None else min(_FETCHED, math.ceil(rate.per_second)),
    )


def deadline_of(value: Duration) -> float:
    """Return the acknowledgement deadline in seconds, within Pub/Sub's limits."""
    result = seconds("ack_deadline", value)
    if not SHORTEST <= result <= LONGEST:
        accepted = f"{SHORTEST:g} to {LONGEST:g} seconds"
        raise ConfigError.bad("ack_deadline", value, accepted)
    return result


def statuses_of(value: Iterable[int]) -> frozenset[int]:
    """Return the statuses after which a message is dead-lettered at once."""
    accepted = "statuses from 200 to 599 that do not acknowledge"
    given: object = value
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError.bad("dead_letter_statuses", given, accepted)
    statuses = tuple(given)
    for status in statuses:
        is_status = isinstance(status, int) and not isinstance(status, bool)
        if not is_status or not _LOWEST <= status <= _HIGHEST or status in ACKS:
            raise ConfigError.bad("dead_letter_statuses", status, accepted)
    return frozenset(statuses)


def checked_kind(name: str, value: Any, kind: type[T]) -> T:
    """Return *value*, after a check that it is a *kind*."""
    if not isinstance(value, kind):
        raise ConfigError.bad(name, value, f"a {kind.__name__}")
    return value
