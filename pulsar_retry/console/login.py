"""Access to the console: host names, a token or a proxy's header, sessions, and checks of forms."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import threading
import time
import urllib.parse
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.redriving.source import operator_name

COOKIE = "pulsar-retry-console"
#: The shortest token, in characters: shorter ones can be guessed.
_SHORTEST = 16
#: How long a session lasts, in seconds.
_SESSION_SECONDS = 12 * 3600.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADER = re.compile("[A-Za-z0-9-]+")
#: The longest name of a user, in characters.
_MOST_NAME = 200


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """Return the name in a ``Host`` header in lower case, without the port."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


class Access:
    """Decides whose requests the console serves. Whoever is served may do everything. Thread-safe.

    On loopback, requests must have a loopback host name. This prevents DNS rebinding, in which the
    name of an attacker's page resolves to this machine. Beyond loopback, every request needs the
    token.

    Attributes:
        user_header: The header in which a proxy says who the user is; None if there is none.
    """

    def __init__(
        self,
        host: str,
        *,
        token: str | None = None,
        user_header: str | None = None,
        allow_hosts: Sequence[str] = (),
    ) -> None:
        """Make the access rules of a console.

        Args:
            host: The address that it listens on.
            token: The token to log in with. With neither a token nor a header, nobody logs in, and
                everybody who reaches the console is served.
            user_header: The name of the header. It is believed, so only the proxy may reach the
                console.
            allow_hosts: Names by which it is reached through a proxy.

        Raises:
            ConfigError: a token is required and missing, or it is too short; or there is a header,
                and also a token, or a host that other machines reach.
        """
        local = is_loopback(host)
        if user_header is not None:
            if not _HEADER.fullmatch(user_header):
                raise ConfigError.bad("user_header", user_header, "the name of a header")
            if token is not None:
                raise ConfigError("user_header: expected no access_token_file beside it")
            if not local:
                raise ConfigError(
                    "user_header: expected a host on loopback, such as 127.0.0.1, because whoever "
                    "reaches the console can send the header"
                )
        elif token is None and (allow_hosts or not local):
            raise ConfigError(
                "access_token_file: expected a file that holds a token, because other machines may "
                "reach the console"
            )
        if token is not None and len(token) < _SHORTEST:
            raise ConfigError(
                f"access_token_file: expected a token of {_SHORTEST} characters or more"
            )
        self._token = None if token is None else token.encode()
        self._hosts: frozenset[str] | None = None
        if local or allow_hosts:
            self._hosts = _LOOPBACK | {host.lower()} | {host_of(each) for each in allow_hosts}
        self.user_header = user_header
        self._sessions: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    @property
    def needs_login(self) -> bool:
        """Whether users log in with a token."""
        return self._token is not None

    def knows_host(self, headers: Sequence[str]) -> bool:
        """Tell whether a request's ``Host`` headers name this console."""
        if len(headers) != 1:
            return False
        return self._hosts is None or host_of(headers[0]) in self._hosts

    def is_own(self, host: str, origin: str | None, fetch_site: str | None) -> bool:
        """Tell whether a form was sent from one of our pages.

        Args:
            host: The ``Host`` header.
            origin: The ``Origin`` header, which every browser sends with a form.
            fetch_site: The ``Sec-Fetch-Site`` header, which some browsers send.
        """
        if origin is None or fetch_site not in {None, "same-origin"}:
            return False
        try:
            parts = urllib.parse.urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in {"http", "https"} and parts.netloc.lower() == host.strip().lower()

    def named(self, values: Sequence[str]) -> str | None:
        """Return the user that a proxy names.

        Args:
            values: The values of the request's headers with the name `user_header`.

        Returns:
            The user, for the audit log; None unless exactly one is named.
        """
        if len(values) != 1:
            return None
        # A server reads headers as Latin-1, and proxies send UTF-8.
        name = values[0].encode("latin-1", "replace").decode("utf-8", "replace").strip()
        return name[:_MOST_NAME] or None

    def user(self, cookie: str | None) -> str | None:
        """Return who sends a request, by its session; None if nobody is known."""
        if self._token is None:
            return operator_name()
        with self._lock:
            ends, user = self._sessions.get(cookie or "", (0.0, None))
        return user if time.monotonic() < ends else None

    def log_in(self, token: str, address: str = "") -> str | None:
        """Return the cookie of a new session; None if the token is wrong.

        Args:
            token: The token.
            address: The IP address of the client, for the name of the user.
        """
        if self._token is None or not _equal(token.strip(), self._token):
            return None
        now, session = time.monotonic(), secrets.token_urlsafe(32)
        with self._lock:
            live = {each: known for each, known in self._sessions.items() if known[0] > now}
            self._sessions = {**live, session: (now + _SESSION_SECONDS, user_of_token(address))}
        return session

    def log_out(self, cookie: str | None) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(cookie or "", None)


def user_of_token(address: str) -> str:
    """Return the name of a user who has the token, for the audit log."""
    return f"token from {address or 'unknown'}"


def _equal(given: str, wanted: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted)


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
_OPEN = frozenset({"/login", "/style.css", "/console.js", "/icon.svg"})
_READING = frozenset({"GET", "HEAD"})


def address_of(scope: Scope) -> str:
    """Return the IP address of a request's client; behind a proxy it is that of the proxy."""
    return str((scope.get("client") or ("",))[0])


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
        if scope["method"] not in _READING and not own:
            return PlainTextResponse("This form was sent from another site.\n", 403)
        return None

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse a request of somebody who is not known."""
        path, header = scope["path"], self._access.user_header
        if header is not None:
            scope["user"] = self._access.named(headers.getlist(header))
            if scope["user"] is None and path not in _OPEN:
                return PlainTextResponse(f"The proxy has not said who you are ({header}).\n", 401)
            return None
        scope["user"] = self._access.user(HTTPConnection(scope).cookies.get(COOKIE))
        if scope["user"] is None and path not in _OPEN:
            if scope["method"] in _READING:
                return RedirectResponse("login", 303)
            return PlainTextResponse("Log in first.\n", 401)
        return None
