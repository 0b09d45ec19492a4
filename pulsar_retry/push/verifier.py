"""Verification of tokens, for receivers."""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jwt

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.policy.checks import Duration, not_blank, seconds
from pulsar_retry.push.endpoint import PushEndpoint
from pulsar_retry.push.tokens import ALGORITHM, ISSUER, LONGEST

_REQUIRED = ["aud", "email", "exp", "iat", "iss"]

#: Seconds for which fetched keys are used.
_LIFESPAN = 3600.0
#: Seconds between two fetches because of an unknown key or a failed fetch. Requests from strangers
#: must not cause a fetch each time.
_COOLDOWN = 30.0
_TIMEOUT = 5.0


class VerificationError(PulsarRetryError):
    """A request does not come from the expected sender. Answer 401: the dispatcher tries again."""


class KeysUnavailableError(VerificationError):
    """Nothing can be verified now, because the keys cannot be fetched. Answer 503."""


class Verifier:
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
    ) -> None:
        """Make a verifier. It fetches nothing before the first request.

        Args:
            keys: A JSON Web Key Set, or its URL. For Google's own tokens the URL is
                ``https://www.googleapis.com/oauth2/v3/certs``. The set is fetched again after an
                hour, and for an unknown key, but at most every 30 s. A URL is ``https``, or
                ``http`` with ``localhost`` or a loopback address. Redirects are not followed.
            audience: The expected ``aud``, by default the URL of the endpoint. Upper and lower case
                do not matter, as Pub/Sub's documentation says.
            email: The expected ``email``.
            issuer: The accepted values of ``iss``.
            leeway: Seconds or a timedelta by which the clocks may differ.

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
        self._keys = _FetchedKeys(keys) if isinstance(keys, str) else _given(keys)

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
        keys, key_id = self._keys, header.get("kid", "")
        try:
            return keys[key_id] if isinstance(keys, jwt.PyJWKSet) else keys.get_signing_key(key_id)
        except (KeyError, jwt.PyJWKClientError) as error:
            raise VerificationError("the key is not known") from error


class _FetchedKeys(jwt.PyJWKClient):
    """Keys from a URL, which are not fetched more often after failures than for unknown keys."""

    def __init__(self, url: str) -> None:
        endpoint = PushEndpoint.of(url)
        if not endpoint.is_tls and endpoint.host.endswith(".localhost"):
            # Without TLS, whoever answers for such a name could give keys.
            accepted = "an https:// URL, or http:// with localhost or a loopback address"
            raise ConfigError.bad("keys", str(endpoint), accepted)
        super().__init__(url, lifespan=_LIFESPAN, timeout=_TIMEOUT, cooldown_duration=_COOLDOWN)
        self._next_fetch = -math.inf

    def fetch_data(self) -> Any:
        """Fetch the keys.

        Raises:
            KeysUnavailableError: they cannot be fetched.
        """
        now = time.monotonic()
        if now < self._next_fetch:
            raise KeysUnavailableError(
                "the keys could not be fetched, and the last attempt was only a moment ago"
            )
        self._next_fetch = now + _COOLDOWN
        try:
            return super().fetch_data()
        # RecursionError: deeply nested lists are valid JSON.
        except (
            jwt.PyJWTError,
            OSError,
            http.client.HTTPException,
            ValueError,
            RecursionError,
        ) as error:
            raise KeysUnavailableError("the keys cannot be fetched") from error


def _given(keys: Mapping[str, Any]) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(dict(keys))
    except (jwt.PyJWTError, TypeError, ValueError):
        accepted = "a JSON Web Key Set, or its URL"
        raise ConfigError.bad("keys", type(keys).__name__, accepted) from None
