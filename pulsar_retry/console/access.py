"""Access to the console: host names, a token, sessions, and a check of forms."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import time
import urllib.parse
from collections.abc import Sequence

from pulsar_retry._throttle import Throttle
from pulsar_retry.errors import ConfigError

COOKIE = "pulsar-retry-console"
#: The shortest token, in characters: shorter ones can be guessed.
_SHORTEST = 16
#: How long a session lasts, in seconds, and how many sessions there may be.
_SESSION_SECONDS, _MOST_SESSIONS = 12 * 3600.0, 1000
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


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
    """Decides whose requests the console serves. Thread-safe.

    On loopback, requests must have a loopback host name. This prevents DNS rebinding, in which the
    name of an attacker's page resolves to this machine. Beyond loopback, every request needs a
    token.
    """

    def __init__(
        self, host: str, *, token: str | None = None, allow_hosts: Sequence[str] = ()
    ) -> None:
        """Make the access rules of a console.

        Args:
            host: The address that it listens on.
            token: The token to log in with; None allows access without a login.
            allow_hosts: Names by which it is reached through a proxy.

        Raises:
            ConfigError: a token is required and missing, or it is too short.
        """
        local = is_loopback(host)
        if token is None and (allow_hosts or not local):
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
        #: The token in every form; a foreign page cannot read it.
        self.form_token = secrets.token_urlsafe(32)
        self._sessions: dict[str, float] = {}
        self._lock = threading.Lock()
        self._throttle = Throttle()

    @property
    def needs_login(self) -> bool:
        """Whether a login is required."""
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

    def is_our_form(self, form_token: str) -> bool:
        """Tell whether a form has the token of our forms."""
        return _equal(form_token, self.form_token.encode())

    def is_admitted(self, cookie: str | None, authorization: str | None, address: str = "") -> bool:
        """Tell whether a request has a valid session or the token.

        Raises:
            TooManyTriesError: the client *address* has sent too many wrong tokens.
        """
        if self._token is None:
            return True
        with self._lock:
            ends = self._sessions.get(cookie or "")
        if ends is not None and time.monotonic() < ends:
            return True
        kind, _, token = (authorization or "").partition(" ")
        return kind.lower() == "bearer" and self._is_token(token, address)

    def log_in(self, token: str, address: str = "") -> str | None:
        """Return the cookie of a new session; None if the token is wrong.

        Raises:
            TooManyTriesError: the client *address* has sent too many wrong tokens.
        """
        if not self._is_token(token, address):
            return None
        session, now = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            live = [(each, ends) for each, ends in self._sessions.items() if ends > now]
            self._sessions = dict(live[-(_MOST_SESSIONS - 1) :])
            self._sessions[session] = now + _SESSION_SECONDS
        return session

    def log_out(self, cookie: str | None) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(cookie or "", None)

    def _is_token(self, given: str, address: str) -> bool:
        if self._token is None:
            return False
        self._throttle.take(address)
        if not _equal(given.strip(), self._token):
            return False
        self._throttle.give_back(address)
        return True


def _equal(given: str, wanted: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted)
