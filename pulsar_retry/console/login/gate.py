"""Checks of every request, and security headers of every answer."""

from __future__ import annotations

import math

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_retry._throttle import TooManyTriesError
from pulsar_retry.console.login.access import COOKIE, Access

#: Pages load only our own style sheet, script and icon, and cannot be shown in a frame.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
        "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With "no-referrer", browsers also hide the origin of our own forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: Paths that need no login.
_OPEN = frozenset(
    {"/login", "/login/oidc", "/login/oidc/callback", "/style.css", "/console.js", "/icon.svg"}
)
#: What a program with a token may send without a form: no page can add this header.
_FOR_PROGRAMS = frozenset({"/marks"})
#: What viewers may send.
_FOR_ALL = frozenset({"/login", "/logout"})
_READING = frozenset({"GET", "HEAD"})


def address_of(scope: Scope) -> str:
    """Return the IP address of a request's client; behind a proxy it is that of the proxy."""
    return str((scope.get("client") or ("",))[0])


def retry_after(error: TooManyTriesError) -> dict[str, str]:
    """Return the header that says when to try again."""
    return {"Retry-After": str(math.ceil(error.wait))}


class AccessMiddleware:
    """Middleware that refuses what `Access` refuses, before the request is routed."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        return self._foreign(scope, headers) or self._stranger(scope, headers)

    def _foreign(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse a request with another host name, and a form of another site."""
        if not self._access.knows_host(headers.getlist("host")):
            return PlainTextResponse("This host name is not served here.\n", 421)
        own = self._access.is_own(
            headers["host"], headers.get("origin"), headers.get("sec-fetch-site")
        )
        scope["by_token"] = (
            self._access.needs_login
            and scope["path"] in _FOR_PROGRAMS
            and "authorization" in headers
        )
        if scope["method"] not in _READING and not own and not scope["by_token"]:
            return PlainTextResponse("This form was sent from another site.\n", 403)
        return None

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse a request of somebody who is not logged in, or has not the role for it."""
        path, reading = scope["path"], scope["method"] in _READING
        cookie = None if scope["by_token"] else HTTPConnection(scope).cookies.get(COOKIE)
        authorization = None if path in _OPEN else headers.get("authorization")
        try:
            user = self._access.user(cookie, authorization, address_of(scope))
        except TooManyTriesError as error:
            return PlainTextResponse(f"{error}\n", 429, headers=retry_after(error))
        scope["user"] = user
        if user is None and path not in _OPEN:
            if reading:
                return RedirectResponse("/login", 303)
            return PlainTextResponse("Log in first.\n", 401)
        may = reading or path in _FOR_ALL or (user is not None and user.operates)
        return None if may else PlainTextResponse("Viewers may not do this.\n", 403)
