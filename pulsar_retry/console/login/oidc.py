"""Login at an OpenID Connect provider: the code flow with PKCE, by authlib."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Collection
from typing import Any

import attrs
import requests
from authlib.integrations.base_client import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from pulsar_retry.console.login.access import Role, User
from pulsar_retry.errors import ConfigError, PulsarRetryError

#: The cookie of a login that has begun: the answer must come to the same browser.
STATE_COOKIE = "pulsar-retry-console-login"
CALLBACK = "/login/oidc/callback"

#: Seconds within which a login must end, and how many may be under way.
_LOGIN_SECONDS, _MOST = 600.0, 1000
#: Seconds for a request to the provider, and for which its settings are kept.
_TIMEOUT, _KEPT = 10.0, 3600.0
#: Only signatures: a secret that both sides share would also be the key of everybody who has it.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "Ed25519"]
#: Seconds by which two clocks may differ.
_LEEWAY = 60
_EVERYBODY = "*"


class OidcError(PulsarRetryError):
    """The login did not succeed."""


@attrs.frozen(kw_only=True)
class OidcSettings:
    """Where users log in, and what they may do.

    Attributes:
        issuer: The provider's issuer, such as ``https://login.example.com``.
        client_id: The id of the console there.
        client_secret: Its secret; None for a public client.
        claim: The claim of the ID token that decides about roles, such as ``groups``.
        operators: The values of the claim that operators have.
        viewers: The values that viewers have; ``*`` for everybody who can log in.
        scope: What is asked for.
    """

    issuer: str
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    claim: str = "groups"
    operators: Collection[str] = ()
    viewers: Collection[str] = ()
    scope: str = "openid email profile"

    def __attrs_post_init__(self) -> None:
        local = self.issuer.startswith(("http://127.0.0.1", "http://localhost"))
        if not self.issuer.startswith("https://") and not local:
            raise ConfigError.bad("oidc_issuer", self.issuer, "a URL that begins with https://")
        if not self.operators and not self.viewers:
            raise ConfigError("oidc_operator: expected at least one operator or viewer")

    def role(self, claims: dict[str, Any]) -> Role | None:
        """Return the role of a user; None if the user may not use the console."""
        value = claims.get(self.claim)
        if self.claim == "email" and not _has_address(claims):
            value = None
        has = {str(each) for each in (value if isinstance(value, list) else [value]) if each}
        if has & set(self.operators):
            return "operator"
        return "viewer" if _EVERYBODY in self.viewers or has & set(self.viewers) else None


def _has_address(claims: dict[str, Any]) -> bool:
    """Tell whether the provider does not say that the address is not verified."""
    return str(claims.get("email_verified", True)).lower() != "false"  # some write a text


@attrs.frozen
class _Begun:
    """A login that has begun."""

    verifier: str
    nonce: str
    redirect_uri: str
    until: float


class OidcLogin:
    """Logs users in at a provider. Thread-safe."""

    def __init__(self, settings: OidcSettings) -> None:
        """Prepare; the provider is asked at the first login."""
        self.settings = settings
        self._begun: dict[str, _Begun] = {}
        self._found: tuple[float, dict[str, Any]] | None = None
        self._lock = threading.Lock()

    def begin(self, redirect_uri: str) -> tuple[str, str]:
        """Begin a login. Return the provider's page, and the state for the user's cookie.

        Args:
            redirect_uri: Where the provider sends the user back to.

        Raises:
            OidcError: the provider does not answer.
        """
        metadata = self._metadata()
        begun = _Begun(
            secrets.token_urlsafe(48),
            secrets.token_urlsafe(24),
            redirect_uri,
            time.monotonic() + _LOGIN_SECONDS,
        )
        with self._session(redirect_uri) as session:
            url, state = session.create_authorization_url(
                metadata["authorization_endpoint"], code_verifier=begun.verifier, nonce=begun.nonce
            )
        with self._lock:
            now = time.monotonic()
            live = [each for each in self._begun.items() if each[1].until > now]
            self._begun = dict(live[-(_MOST - 1) :])
            self._begun[state] = begun
        return url, state

    def end(self, url: str, state: str, cookie: str | None) -> User:
        """Return the user whom the provider has sent back to *url*.

        Args:
            url: The whole URL of the request.
            state: The state in the URL.
            cookie: The state in the cookie.

        Raises:
            OidcError: the login has not begun here, the provider refuses it, its answer is not
                valid, or the user has no role.
        """
        with self._lock:
            begun = self._begun.pop(state, None)
        same = hmac.compare_digest(state.encode("utf-8", "replace"), (cookie or "").encode())
        if begun is None or not same or begun.until < time.monotonic():
            raise OidcError("This login has not begun in this browser, or is too old. Try again.")
        metadata = self._metadata()
        try:
            with self._session(begun.redirect_uri) as session:
                token = session.fetch_token(
                    metadata["token_endpoint"],
                    authorization_response=url,
                    state=state,
                    code_verifier=begun.verifier,
                    timeout=_TIMEOUT,
                )
            claims = self._claims(str(token["id_token"]), metadata, begun.nonce, token)
        except (OAuthError, JoseError, requests.RequestException, KeyError, ValueError) as error:
            raise OidcError(f"The provider's answer was not accepted: {error}") from error
        role = self.settings.role(claims)
        address = claims.get("email") if _has_address(claims) else None
        name = str(address or claims.get("preferred_username") or claims["sub"])
        if role is None:
            raise OidcError(f"{name} has no role in this console.")
        return User(name, role)

    def _claims(
        self, id_token: str, metadata: dict[str, Any], nonce: str, token: Any
    ) -> dict[str, Any]:
        keys = KeySet.import_key_set(self._get(metadata["jwks_uri"]))
        decoded = jwt.decode(id_token, keys, algorithms=_ALGORITHMS)
        options = {
            "iss": {"essential": True, "value": metadata["issuer"]},
            "aud": {"essential": True, "value": self.settings.client_id},
        }
        params = {
            "nonce": nonce,
            "client_id": self.settings.client_id,
            "access_token": token.get("access_token"),
        }
        claims = CodeIDToken(decoded.claims, decoded.header, options, params)
        claims.validate(leeway=_LEEWAY)
        return dict(claims)

    def _session(self, redirect_uri: str) -> OAuth2Session:
        return OAuth2Session(
            self.settings.client_id,
            self.settings.client_secret,
            scope=self.settings.scope,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic"
            if self.settings.client_secret
            else "none",
        )

    def _metadata(self) -> dict[str, Any]:
        found = self._found
        if found is not None and time.monotonic() - found[0] < _KEPT:
            return found[1]
        issuer = self.settings.issuer
        metadata: dict[str, Any] = self._get(
            f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        )
        if metadata.get("issuer") != issuer:
            raise OidcError(f"{issuer} says that it is {metadata.get('issuer')!r}.")
        self._found = (time.monotonic(), metadata)
        return metadata

    def _get(self, url: str) -> Any:
        try:
            answer = requests.get(url, timeout=_TIMEOUT, allow_redirects=False)
            answer.raise_for_status()
            found = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise OidcError(f"The provider does not answer: {error}") from error
        if not isinstance(found, dict):
            raise OidcError("The provider's answer is not a JSON object.")
        return found
