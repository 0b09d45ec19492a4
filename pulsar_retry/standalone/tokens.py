"""Makes the secret key and the tokens for Pulsar's token authentication.

A token is a JSON Web Token signed with HMAC-SHA-256 (RFC 7515, algorithm HS256). This takes three
lines with the standard library, so the package does not depend on a JWT library here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from pathlib import Path

__all__ = ["SECRET_BYTES", "load_secret", "sign_token"]

SECRET_BYTES = 32


def load_secret(path: Path) -> bytes:
    """Return the key in *path*. If there is none, create one that only its owner can read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        secret = secrets.token_bytes(SECRET_BYTES)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
        return secret


def sign_token(secret: bytes, role: str, lifetime: float | None = None) -> str:
    """Return a token for *role*.

    Args:
        secret: The broker's key.
        role: Pulsar's name for the user of the token.
        lifetime: Seconds until it expires; None for never. It may be negative, for an expired
            token.
    """
    claims: dict[str, str | int] = {"sub": role}
    if lifetime is not None:
        claims["exp"] = int(time.time() + lifetime)
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    signed = b".".join(map(_base64url, parts))
    signature = hmac.digest(secret, signed, hashlib.sha256)
    return b".".join((signed, _base64url(signature))).decode("ascii")


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
