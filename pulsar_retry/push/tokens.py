"""Tokens that prove the sender to a receiver: OpenID Connect JWTs, as in Pub/Sub."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl

import attrs
import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.algorithms import RSAAlgorithm
from jwt.utils import base64url_encode

from pulsar_retry.errors import ConfigError
from pulsar_retry.observe.serving import Page
from pulsar_retry.policy.checks import not_blank

ALGORITHM = "RS256"
#: The issuer in Google's tokens, which existing receivers check.
ISSUER = "https://accounts.google.com"

#: "The tokens attached to requests sent to push endpoints may be up to an hour old."
_LIFETIME = 3600.0
#: The ``iat`` is this many seconds in the past, for receivers whose clocks are behind.
_BACKDATED = 60.0
#: A token is used for this many seconds; it expires four minutes later.
_USED_FOR = _LIFETIME - _BACKDATED - 240.0
#: RS256 requires at least this size (RFC 7518, 3.3).
_LEAST_BITS = 2048
_NO_ACCOUNT = HTTPStatus.NOT_FOUND, {"error": "there is no service account"}
_NO_TOKEN = (
    HTTPStatus.BAD_REQUEST,
    {"error": "invalid_token", "error_description": "Invalid Value"},
)

#: The longest accepted token, in characters; longer ones are refused unread.
LONGEST = 16 * 1024


class ServiceAccount:
    """Signs requests with a JWT like Pub/Sub's. Thread-safe.

    The claims are ``iss``, ``aud``, ``azp``, ``sub``, ``email``, ``email_verified``, ``iat`` and
    ``exp``. A token is used for all requests to its audience until shortly before it expires, and
    several dispatchers can share an account. No third party vouches for the account: give the
    public key to the receivers (`jwks`). ``push serve`` serves it, too.

    To change the key, first publish the new one beside the old one (*others*). When receivers know
    it, sign with the new one and publish the old one, and after an hour leave the old one out.
    """

    def __init__(
        self,
        email: str,
        private_key: str | bytes,
        *,
        key_id: str | None = None,
        subject: str | None = None,
        issuer: str = ISSUER,
        others: Iterable[ServiceAccount] = (),
    ) -> None:
        """Make an account.

        Args:
            email: The ``email`` claim.
            private_key: An RSA key of at least 2048 bits, as PEM.
            key_id: The ``kid`` of tokens. None means the thumbprint of the key (RFC 7638).
            subject: The ``sub`` and ``azp`` claims. None means the email.
            issuer: The ``iss`` claim. The default is Google's, which receivers expect.
            others: Accounts with the next key or the last one. Their public keys are published,
                too; they do not sign.

        Raises:
            ConfigError: an argument is invalid. The message does not show the key.
        """
        for name, value in {"email": email, "issuer": issuer}.items():
            not_blank(name, value)
        self._key = _Key.of(private_key, key_id)
        self._published = (self._key, *(each._key for each in _accounts(others)))  # noqa: SLF001 - of this class
        if len({each.id for each in self._published}) < len(self._published):
            raise ConfigError.bad("others", self._key.id, "accounts with other keys")
        self._email, self._subject, self._issuer = email, subject or email, issuer
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[float, str]] = {}

    def __repr__(self) -> str:
        return f"<ServiceAccount {self._email}, key {self._key.id}>"

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        issuer: str = ISSUER,
        others: Iterable[ServiceAccount] = (),
    ) -> Self:
        """Read the key file of a service account (Google's JSON format).

        Raises:
            ConfigError: the file cannot be read, or is not a key file. The message does not show
                its content.
        """
        accepted = "a service account's key file: JSON with client_email and private_key"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            email, key = content["client_email"], content["private_key"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = f"{path} ({type(error).__name__})"
            raise ConfigError.bad("service_account", why, accepted) from None
        return cls(
            email,
            key,
            key_id=content.get("private_key_id"),
            subject=content.get("client_id"),
            issuer=issuer,
            others=others,
        )

    def token(self, audience: str) -> str:
        """Return a token for *audience* that is valid for at least four minutes."""
        with self._lock:
            now = time.time()
            signed, token = self._tokens.get(audience, (math.inf, ""))
            if not 0 <= now - signed <= _USED_FOR:  # the clock may have been set back
                token = self._signed(audience, now)
                self._tokens[audience] = (now, token)
            return token

    def jwks(self) -> dict[str, Any]:
        """Return the public keys as a JSON Web Key Set."""
        return {"keys": [each.jwk() for each in self._published]}

    def token_info(self, token: str) -> dict[str, str] | None:
        """Return the header and the claims of a token as texts, like Google's ``tokeninfo``.

        None if no published key has signed the token, or if it was changed or has expired. The
        receiver must check the audience and the email.
        """
        if len(token) > LONGEST:
            return None
        options: Any = {"verify_aud": False, "require": ["exp"]}
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            signer = next((each for each in self._published if each.id == key_id), self._key)
            key = signer.private.public_key()
            found = jwt.decode_complete(token, key, algorithms=[ALGORITHM], options=options)
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        values = found["header"] | found["payload"]
        return {name: _text(value) for name, value in sorted(values.items())}

    def _signed(self, audience: str, now: float) -> str:
        issued = int(now - _BACKDATED)
        claims = {
            "aud": audience,
            "azp": self._subject,
            "email": self._email,
            "email_verified": True,
            "exp": issued + int(_LIFETIME),
            "iat": issued,
            "iss": self._issuer,
            "sub": self._subject,
        }
        header = {"kid": self._key.id}
        return jwt.encode(claims, self._key.private, algorithm=ALGORITHM, headers=header)


def key_pages(account: ServiceAccount | None) -> dict[str, Page]:
    """Return the pages of *account* by their paths; without an account, each is a 404.

    They are ``/.well-known/jwks.json``, the public keys, and ``/tokeninfo?id_token=…``.
    """

    def keys(_query: str) -> tuple[HTTPStatus, object]:
        return _NO_ACCOUNT if account is None else (HTTPStatus.OK, account.jwks())

    def token_info(query: str) -> tuple[HTTPStatus, object]:
        if account is None:
            return _NO_ACCOUNT
        info = account.token_info(dict(parse_qsl(query)).get("id_token", ""))
        return (HTTPStatus.OK, info) if info else _NO_TOKEN

    return {"/.well-known/jwks.json": keys, "/tokeninfo": token_info}


@attrs.frozen
class _Key:
    """A key that signs, with its id."""

    id: str
    private: rsa.RSAPrivateKey

    @classmethod
    def of(cls, pem: str | bytes, key_id: str | None) -> Self:
        private = _rsa_key(pem)
        return cls(key_id or _thumbprint(_public(private)), private)

    def jwk(self) -> dict[str, Any]:
        return {**_public(self.private), "alg": ALGORITHM, "use": "sig", "kid": self.id}


def _public(key: rsa.RSAPrivateKey) -> dict[str, Any]:
    public: dict[str, Any] = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return public


def _accounts(others: Iterable[ServiceAccount]) -> tuple[ServiceAccount, ...]:
    given: object = others
    accounts = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(each, ServiceAccount) for each in accounts):
        # Show only the types: a value may be the secret itself.
        names = [type(each).__name__ for each in accounts]
        raise ConfigError.bad("others", names, "ServiceAccounts")
    return accounts


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rsa_key(pem: str | bytes) -> rsa.RSAPrivateKey:
    accepted = f"an RSA key of {_LEAST_BITS} bits or more, PEM, without a password"
    try:
        key = load_pem_private_key(pem.encode() if isinstance(pem, str) else pem, password=None)
    except (ValueError, TypeError, AttributeError) as error:
        # Neither the message nor a traceback may show the key.
        raise ConfigError.bad("private_key", type(error).__name__, accepted) from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _LEAST_BITS:
        raise ConfigError.bad("private_key", type(key).__name__, accepted)
    return key


def _thumbprint(public: Mapping[str, Any]) -> str:
    members = {name: public[name] for name in ("e", "kty", "n")}
    digest = hashes.Hash(hashes.SHA256())
    digest.update(json.dumps(members, separators=(",", ":"), sort_keys=True).encode())
    return base64url_encode(digest.finalize()).decode()
