"""What a dispatcher's requests look like, and how it connects: the values that users give."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import Duration, flag, not_blank, positive
from pulsar_retry.push.http import MAX_AGE
from pulsar_retry.push.tokens import ServiceAccount

T = TypeVar("T")


def of_kind(name: str, value: Any, kind: type[T]) -> T:
    """Return *value*, after a check that it is a *kind*.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, kind):
        raise ConfigError.bad(name, value, f"a {kind.__name__}")
    return value


def _by(check: Callable[..., Any], *more: Any) -> Any:
    """Return a validator that calls *check* with the name of the field, and its value."""
    return lambda _, field, value: check(field.name, value, *more)


_TEXT = attrs.validators.optional(_by(not_blank, "a text that is not blank, or None"))


def _sign(_: object, __: object, value: Any) -> None:
    if not isinstance(value, ServiceAccount | None):
        # Show only the type: the value may be the secret itself.
        raise ConfigError.bad("sign", type(value).__name__, "a ServiceAccount or None")


@attrs.frozen(kw_only=True)
class Form:
    """What requests look like.

    Attributes:
        wrapped: Whether the body is Pub/Sub's JSON envelope. If False, it is the payload.
        subscription_name: The ``subscription`` that receivers see. None means
            ``projects/<tenant>/subscriptions/<subscription>``.
        sign: The account whose tokens prove the sender to receivers. None sends no token.
        audience: The ``aud`` claim of the tokens; only with *sign*. None means the URL of the
            endpoint.

    Raises:
        ConfigError: a value is invalid, or two values contradict each other.
    """

    wrapped: bool = attrs.field(default=True, validator=_by(flag))
    subscription_name: str | None = attrs.field(default=None, validator=_TEXT)
    sign: ServiceAccount | None = attrs.field(default=None, validator=_sign)
    audience: str | None = attrs.field(default=None, validator=_TEXT)

    def __attrs_post_init__(self) -> None:
        """Refuse an audience without an account."""
        if self.audience is not None and self.sign is None:
            accepted = "a service account too, because the audience is part of its tokens"
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
        allow_http: Whether ``http://`` is accepted for hosts other than loopback.
        tls: The TLS context, with the trusted certificates and the client's own certificate. It
            must verify certificates and host names. Several dispatchers may share it; its ALPN
            protocol is set to HTTP/1.1. None uses the trusted certificates of the system.
        renew_after: Seconds or a timedelta. A connection is not used for longer; the name of the
            host is looked up for each new one, so that requests follow a name that leads elsewhere.

    Raises:
        ConfigError: a value is invalid.
    """

    allow_http: bool = attrs.field(default=False, validator=_by(flag))
    tls: ssl.SSLContext | None = attrs.field(default=None, validator=_tls)
    renew_after: float = attrs.field(default=MAX_AGE, converter=_renew_after)
