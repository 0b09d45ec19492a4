"""The pages that show receivers the keys of a service account, beside a dispatcher's metrics."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qsl

from pulsar_retry.observe.serving import Page
from pulsar_retry.push.auth.tokens import ServiceAccount

_KEYS, _TOKEN_INFO = "/.well-known/jwks.json", "/tokeninfo"
_NO_ACCOUNT = HTTPStatus.NOT_FOUND, {"error": "there is no service account"}
_NO_TOKEN = (
    HTTPStatus.BAD_REQUEST,
    {"error": "invalid_token", "error_description": "Invalid Value"},
)


def key_pages(account: ServiceAccount | None) -> dict[str, Page]:
    """Return the pages of *account* by their paths; without an account, each is a 404.

    They are ``/.well-known/jwks.json``, the public keys, and ``/tokeninfo?id_token=…``.
    """
    if account is None:
        return dict.fromkeys((_KEYS, _TOKEN_INFO), lambda _query: _NO_ACCOUNT)

    def token_info(query: str) -> tuple[HTTPStatus, object]:
        info = account.token_info(dict(parse_qsl(query)).get("id_token", ""))
        return (HTTPStatus.OK, info) if info else _NO_TOKEN

    return {_KEYS: lambda _query: (HTTPStatus.OK, account.jwks()), _TOKEN_INFO: token_info}
