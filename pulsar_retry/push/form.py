"""What a dispatcher's requests look like, and how it connects: the values that users give."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import flag, not_blank, positive
from pulsar_retry.policy.durations import Duration
from pulsar_retry.push.auth.tokens import ServiceAccount
from pulsar_retry.push.body import may_be_header
from pulsar_retry.push.endpoint import Guard
from pulsar_retry.push.http import MAX_AGE


def _is(kind: type) -> Any:
    def check(_: object, attribute: Any, value: object) -> None:
        if not isinstance(value, kind):
            raise ConfigError.bad(attribute.name, value, f"a {kind.__name__}")

    return check


def _flag(_: object, attribute: Any, value: object) -> None:
    flag(attribute.name, value)


def _text(_: object, attribute: Any, value: object) -> None:
    if value is not None:
        not_blank(attribute.name, value, "a text that is not blank, or None")


def _sign(_: object, __: object, value: Any) -> None:
    if not isinstance(value, ServiceAccount | None):
        # Show only the type: the value may be the secret itself.
        raise ConfigError.bad("sign", type(value).__name__, "a ServiceAccount or None")


def _attribute_headers(value: Any) -> frozenset[str]:
    accepted = "names of headers, except those that the request itself, proxies or this package use"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError.bad("attribute_headers", value, accepted)
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or not may_be_header(name):
            raise ConfigError.bad("attribute_headers", name, accepted)
    return frozenset(name.lower() for name in names)


@attrs.frozen(kw_only=True)
class Form:
    """What requests look like.

    Attributes:
        wrapped: Whether the body is Pub/Sub's JSON envelope. If False, it is the payload.
        write_metadata: Whether the id, time, key and attributes of an unwrapped message are sent as
            headers. Attributes are sent as ``X-Pulsar-Attribute-<name>``.
        attribute_headers: Attributes that are sent without that prefix, such as
            ``["Content-Type"]``. Be careful: producers choose the values, and receivers act upon
            headers.
        subscription_name: The ``subscription`` that receivers see. None means
            ``projects/<tenant>/subscriptions/<subscription>``.
        sign: The account whose tokens prove the sender to receivers. None sends no token.
        audience: The ``aud`` claim of the tokens; only with *sign*. None means the URL of the
            endpoint.

    Raises:
        ConfigError: a value is invalid, or two values contradict each other.
    """

    wrapped: bool = attrs.field(default=True, validator=_flag)
    write_metadata: bool = attrs.field(default=False, validator=_flag)
    attribute_headers: frozenset[str] = attrs.field(default=(), converter=_attribute_headers)
    subscription_name: str | None = attrs.field(default=None, validator=_text)
    sign: ServiceAccount | None = attrs.field(default=None, validator=_sign)
    audience: str | None = attrs.field(default=None, validator=_text)

    def __attrs_post_init__(self) -> None:
        """Refuse values that contradict each other."""
        if self.wrapped and self.write_metadata:
            raise ConfigError.bad("write_metadata", True, "wrapped=False too")  # noqa: FBT003 - a value
        if self.attribute_headers and not self.write_metadata:
            names = sorted(self.attribute_headers)
            raise ConfigError.bad("attribute_headers", names, "write_metadata=True too")
        if self.audience is not None and self.sign is None:
            accepted = "a ServiceAccount in sign, because the audience is part of its tokens"
            raise ConfigError.bad("audience", self.audience, accepted)


def _tls(_: object, __: object, value: ssl.SSLContext | None) -> None:
    if value is None:
        return
    if not isinstance(value, ssl.SSLContext):
        raise ConfigError.bad("tls", value, "an ssl.SSLContext or None")
    if value.verify_mode is not ssl.CERT_REQUIRED or not value.check_hostname:
        raise ConfigError.bad("tls", value, "a context that verifies certificates and host names")


def _renew_after(value: Duration) -> float:
    return positive("renew_after", value)


@attrs.frozen(kw_only=True)
class Connections:
    """How a dispatcher connects to its endpoint.

    Attributes:
        guard: The addresses that may be connected to.
        allow_http: Whether ``http://`` is accepted for hosts other than loopback.
        tls: The TLS context, with the trusted certificates and the client's own certificate. It
            must verify certificates and host names. Several dispatchers may share it; its ALPN
            protocol is set to HTTP/1.1. None uses the trusted certificates of the system.
        renew_after: Seconds or a timedelta. A connection is not used for longer; the name of the
            host is looked up for each new one, so that requests follow a name that leads elsewhere.

    Raises:
        ConfigError: a value is invalid.
    """

    guard: Guard = attrs.field(factory=Guard, validator=_is(Guard))
    allow_http: bool = attrs.field(default=False, validator=_flag)
    tls: ssl.SSLContext | None = attrs.field(default=None, validator=_tls)
    renew_after: float = attrs.field(default=MAX_AGE, converter=_renew_after)
