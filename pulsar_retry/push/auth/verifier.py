"""Verification of tokens, for receivers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jwt

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import not_blank
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.push.auth.jwks import Fetched, KeyCache, by_id, fetcher
from pulsar_retry.push.auth.middleware import RequestVerifier, VerificationError
from pulsar_retry.push.auth.tokens import ALGORITHM, ISSUER, LONGEST

_REQUIRED = ["aud", "email", "exp", "iat", "iss"]


class Verifier(RequestVerifier):
    """Checks the JWT of a push request, from Google or from a `ServiceAccount`. Thread-safe.

    It checks the signature (only RS256, whatever the token says), ``exp``, ``iat``, ``aud``,
    ``iss``, ``email`` and ``email_verified``: everything that Pub/Sub's documentation asks
    receivers to check.
    """

    def __init__(
        self,
        keys: str | Mapping[str, Any],
        *,
        audience: str,
        email: str,
        issuer: str | Iterable[str] = (ISSUER, "accounts.google.com"),
        leeway: Duration = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a verifier. It fetches nothing before the first request.

        Args:
            keys: A JSON Web Key Set, or its URL. For Google's own tokens the URL is
                ``https://www.googleapis.com/oauth2/v3/certs``. The set is fetched again when it is
                older than its server allows, or for an unknown key, but at most every 30 s.
            audience: The expected ``aud``, by default the URL of the endpoint. Upper and lower case
                do not matter, as Pub/Sub's documentation says.
            email: The expected ``email``.
            issuer: The accepted values of ``iss``.
            leeway: Seconds or a timedelta by which the clocks may differ.
            clock: Returns seconds, to measure the age of keys.

        Raises:
            ConfigError: an argument is invalid.
        """
        for name, value in {"audience": audience, "email": email}.items():
            not_blank(name, value)
        self._audience, self._email = audience, email
        self._issuers = [issuer] if isinstance(issuer, str) else list(issuer)
        if not self._issuers:
            raise ConfigError.bad("issuer", issuer, "one or more texts")
        self._leeway = seconds("leeway", leeway)
        self._keys = KeyCache(_source(keys), clock)

    def verify(self, headers: Mapping[str, str]) -> Mapping[str, object]:
        """Return the claims of a request.

        Args:
            headers: The headers of the request. The case of names does not matter.

        Raises:
            VerificationError: the token is missing or invalid. The message says why; do not send it
                to the caller.
            KeysUnavailableError: the keys cannot be fetched.
        """
        value = next((v for name, v in headers.items() if name.lower() == "authorization"), "")
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST:
            raise VerificationError("there is no bearer token")
        return self.verify_token(token.strip())

    def verify_token(self, token: str) -> Mapping[str, object]:
        """Return the claims of a token.

        Raises:
            VerificationError: the token is invalid.
            KeysUnavailableError: the keys cannot be fetched.
        """
        try:
            claims = jwt.decode(
                token,
                self._key(token),
                algorithms=[ALGORITHM],
                issuer=self._issuers,
                leeway=self._leeway,
                options={"require": _REQUIRED, "verify_aud": False},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise VerificationError(f"the token is invalid: {error}") from error
        audience = claims["aud"]  # a list is refused: some of it may be meant for others
        if not isinstance(audience, str) or audience.lower() != self._audience.lower():
            raise VerificationError("the audience does not match")
        if claims["email"] != self._email:
            raise VerificationError("the email does not match")
        if claims.get("email_verified") is not True:
            raise VerificationError("the email is not verified")
        return dict(claims)

    def _key(self, token: str) -> jwt.PyJWK:
        header = jwt.get_unverified_header(token)
        if header.get("alg") != ALGORITHM:
            raise VerificationError(f"the algorithm is not {ALGORITHM}")
        key = self._keys.get(str(header.get("kid", "")))
        if key is None:
            raise VerificationError("the key is not known")
        if key.get("kty") != "RSA":
            raise VerificationError("the key is not an RSA key")
        return jwt.PyJWK(dict(key), algorithm=ALGORITHM)


def _source(keys: str | Mapping[str, Any]) -> Callable[[], Fetched]:
    if isinstance(keys, str):
        return fetcher(keys)
    try:
        by_id(keys)
    except ValueError:
        accepted = "a JSON Web Key Set, or its URL"
        raise ConfigError.bad("keys", type(keys).__name__, accepted) from None
    return lambda: (keys, None)
