"""Signatures with a shared secret: Standard Webhooks (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.push.auth.middleware import RequestVerifier, VerificationError
from pulsar_retry.push.body import Header

_PREFIX = "whsec_"
#: The shortest secret, in bytes: shorter ones can be guessed.
_LEAST = 16
_ID, _TIME, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
#: Characters that are replaced in the ids that we sign. An id is a header's value, and must not
#: contain a dot.
_NOT_OF_AN_ID = re.compile(r"[^0-9A-Za-z:;_-]")
#: Accepted ids and times, also those of other signers. Neither may contain a dot, because a dot
#: separates them from the body: a signature must not be valid for another division of the same
#: bytes.
_ID_FORM, _TIME_FORM = re.compile(r"[!-\-/-~]+"), re.compile(r"[1-9][0-9]{0,11}")

Secret = str | bytes


class Hmac:
    """Signs the id, time and body of requests with HMAC-SHA256. Thread-safe.

    Receivers check the signature with `HmacVerifier`, or with any library for Standard Webhooks.
    The id is that of the message, the same at each attempt.
    """

    def __init__(
        self, secret: Secret | Sequence[Secret], *, clock: Callable[[], float] = time.time
    ) -> None:
        """Make a signer.

        Args:
            secret: Bytes, or ``whsec_`` followed by base64; at least 16 bytes. Give a list while
                secrets are being replaced: each of them signs.
            clock: Returns the seconds since 1970.

        Raises:
            ConfigError: a secret is invalid. The message does not show it.
        """
        self._secrets = secrets(secret)
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Hmac with {len(self._secrets)} secrets>"

    def headers(self, audience: str, message_id: str, body: bytes) -> list[Header]:  # noqa: ARG002 - not signed
        """Return the headers for *body*."""
        name = _NOT_OF_AN_ID.sub("_", message_id)
        moment = str(int(self._clock()))
        signatures = [_signature(secret, name, moment, body) for secret in self._secrets]
        return [
            (_ID.encode(), name.encode()),
            (_TIME.encode(), moment.encode()),
            (_SIGNATURE.encode(), " ".join(signatures).encode()),
        ]


class HmacVerifier(RequestVerifier):
    """Checks the signatures of `Hmac`. Thread-safe."""

    needs_body = True

    def __init__(
        self,
        secret: Secret | Sequence[Secret],
        *,
        tolerance: Duration = 300.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make a verifier.

        Args:
            secret: One secret, or several; a request must be signed with one of them.
            tolerance: Seconds or a timedelta by which the time of a request may be in the past or
                in the future.
            clock: Returns the seconds since 1970.

        Raises:
            ConfigError: an argument is invalid.
        """
        self._secrets = secrets(secret)
        self._tolerance = seconds("tolerance", tolerance)
        self._clock = clock

    def verify(self, headers: Mapping[str, str], body: bytes = b"") -> Mapping[str, object]:
        """Return the id and the time of a request.

        Args:
            headers: The headers of the request. The case of names does not matter.
            body: The body, exactly as it was received.

        Raises:
            VerificationError: the request is not signed, is not signed with a known secret, or is
                too old; or its id or time is malformed. An id with a dot is refused.
        """
        found = {name.lower(): value for name, value in headers.items()}
        name, moment, signatures = (found.get(each, "") for each in (_ID, _TIME, _SIGNATURE))
        if not (name and moment and signatures):
            raise VerificationError("a header is missing")
        if not _ID_FORM.fullmatch(name):
            raise VerificationError("the id contains characters that are not allowed")
        if not _TIME_FORM.fullmatch(moment):
            raise VerificationError("the time is not a number of seconds since 1970")
        if abs(self._clock() - int(moment)) > self._tolerance:
            raise VerificationError("the time is too far in the past or in the future")
        wanted = [_signature(secret, name, moment, body) for secret in self._secrets]
        given = [each.encode("ascii", "replace") for each in signatures.split(" ")]
        # Compare all of them, so that the duration gives no information.
        matches = [hmac.compare_digest(w.encode(), g) for w in wanted for g in given]
        if not any(matches):
            raise VerificationError("the signature does not match")
        return {"id": name, "timestamp": int(moment)}


def secrets(secret: Secret | Sequence[Secret]) -> tuple[bytes, ...]:
    """Return secrets as bytes.

    Raises:
        ConfigError: a secret is invalid.
    """
    several = [secret] if isinstance(secret, str | bytes) else secret
    if not isinstance(several, Sequence) or not several:
        raise ConfigError.bad("secret", type(secret).__name__, _ACCEPTED)
    return tuple(map(_secret, several))


def _secret(secret: object) -> bytes:
    raw = secret if isinstance(secret, bytes) else b""
    if isinstance(secret, str) and secret.startswith(_PREFIX):
        try:
            raw = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raw = b""
    if len(raw) < _LEAST:
        raise ConfigError.bad("secret", type(secret).__name__, _ACCEPTED)
    return raw


def _signature(secret: bytes, name: str, moment: str, body: bytes) -> str:
    signed = b".".join((name.encode(), moment.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()


_ACCEPTED = f"{_LEAST} or more bytes, or {_PREFIX} followed by their base64"
