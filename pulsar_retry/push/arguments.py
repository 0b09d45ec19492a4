"""Checks the arguments of a dispatcher; each invalid one raises `ConfigError`. Pure."""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import Immediate
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.rules.flow import RESUME, FlowControl
from pulsar_retry.push.auth.tokens import ServiceAccount
from pulsar_retry.push.body import may_be_header
from pulsar_retry.push.pacing.pacer import in_hand
from pulsar_retry.push.pacing.window import EXPONENTIAL_UP_TO, Window

#: Pub/Sub's ``ack_deadline_seconds``.
SHORTEST, LONGEST, USUAL = 10.0, 600.0, 10.0


def policy_of(policy: RetryPolicy | None, dead_letter_policy: object | None) -> RetryPolicy:
    """Return the policy for the subscriber. Without one, a failed message comes back at once."""
    if policy is not None:
        return policy
    return RetryPolicy(
        max_attempts=math.inf if dead_letter_policy is None else None,
        backoff=Immediate(),
    )


def flow_control_for(window: Window) -> FlowControl:
    """Return a flow control that never holds back messages that the window lets pass.

    It leaves room for messages that are parked in lanes, because those must not block others.
    """
    return FlowControl(max(EXPONENTIAL_UP_TO, math.ceil(in_hand(window.maximum) / RESUME)))


def checked_account(sign: ServiceAccount | None) -> ServiceAccount | None:
    """Return *sign*, after a check that it is an account or None."""
    if sign is not None and not isinstance(sign, ServiceAccount):
        # Show only the type: the value may be the secret itself.
        raise ConfigError.bad("sign", type(sign).__name__, "a ServiceAccount or None")
    return sign


def attribute_headers_of(value: Sequence[str], *, write_metadata: bool) -> frozenset[str]:
    """Return the names of attributes that are sent as headers without a prefix, in lower case."""
    accepted = "names of headers, except those that the request itself, proxies or this package use"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError.bad("attribute_headers", value, accepted)
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or not may_be_header(name):
            raise ConfigError.bad("attribute_headers", name, accepted)
    if names and not write_metadata:
        raise ConfigError.bad("attribute_headers", names, "write_metadata=True too")
    return frozenset(name.lower() for name in names)


def deadline_of(value: Duration) -> float:
    """Return the acknowledgement deadline in seconds, within Pub/Sub's limits."""
    result = seconds("ack_deadline", value)
    if not SHORTEST <= result <= LONGEST:
        accepted = f"{SHORTEST:g} to {LONGEST:g} seconds"
        raise ConfigError.bad("ack_deadline", value, accepted)
    return result


def checked_kind(name: str, value: Any, kind: type) -> Any:
    """Return *value*, after a check that it is a *kind*."""
    if not isinstance(value, kind):
        raise ConfigError.bad(name, value, f"a {kind.__name__}")
    return value


def checked_tls(context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return *context*, after a check that it verifies the server."""
    if context is None:
        return None
    checked_kind("tls", context, ssl.SSLContext)
    if context.verify_mode is not ssl.CERT_REQUIRED or not context.check_hostname:
        raise ConfigError.bad("tls", context, "a context that verifies certificates and host names")
    return context
