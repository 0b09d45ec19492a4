"""Who may look: names of hosts, a token, sessions, and forms that are our own."""

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
#: Characters of a token: fewer can be guessed.
_FEWEST = 16
#: Seconds after which one has to log in again, and sessions at a time.
_LASTS, _MOST_SESSIONS = 12 * 3600.0, 1000
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches what listens on an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """Return the name in a ``Host`` header, without the port, in small letters."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


class Access:
    """Decides whom the console serves. Thread-safe.

    On loopback, requests have to name a host that is loopback: a page elsewhere whose name is made
    to lead here, DNS rebinding, reads nothing. Beyond loopback everybody has to bring a token.
    """

    def __init__(
        self, host: str, *, token: str | None = None, allow_hosts: Sequence[str] = ()
    ) -> None:
        """Decide for a console.

        Args:
            host: The address that it listens on.
            token: What one logs in with; None: nobody has to.
            allow_hosts: Names by which it is reached through a proxy.

        Raises:
            ConfigError: there has to be a token, or it can be guessed.
        """
        local = is_loopback(host)
        if token is None and (allow_hosts or not local):
            raise ConfigError(
                "access_token_file: expected a file that holds a token, for others than this "
                "machine may reach the console"
            )
        if token is not None and len(token) < _FEWEST:
            raise ConfigError(
                f"access_token_file: expected a token of {_FEWEST} characters or more"
            )
        self._token = None if token is None else token.encode()
        self._hosts: frozenset[str] | None = None
        if local or allow_hosts:
            self._hosts = _LOOPBACK | {host.lower()} | {host_of(each) for each in allow_hosts}
        #: What every form has to bring; a page elsewhere cannot read it.
        self.form_token = secrets.token_urlsafe(32)
        self._sessions: dict[str, float] = {}
        self._lock = threading.Lock()
        self._throttle = Throttle()

    @property
    def needs_login(self) -> bool:
        """Whether one has to log in."""
        return self._token is not None

    def knows_host(self, headers: Sequence[str]) -> bool:
        """Tell whether a request, by its ``Host`` headers, is meant for us."""
        if len(headers) != 1:
            return False
        return self._hosts is None or host_of(headers[0]) in self._hosts

    def is_own(self, host: str, origin: str | None, fetch_site: str | None) -> bool:
        """Tell whether a form was sent from one of our pages.

        Args:
            host: The ``Host`` header.
            origin: The ``Origin`` header, which every browser sends with a form.
            fetch_site: The ``Sec-Fetch-Site`` header, of the browsers that send it.
        """
        if origin is None or fetch_site not in {None, "same-origin"}:
            return False
        try:
            parts = urllib.parse.urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in {"http", "https"} and parts.netloc.lower() == host.strip().lower()

    def is_our_form(self, form_token: str) -> bool:
        """Tell whether a form brings what ours have."""
        return _equal(form_token, self.form_token.encode())

    def is_admitted(self, cookie: str | None, authorization: str | None, address: str = "") -> bool:
        """Tell whether a request comes from somebody who has logged in, or brings the token.

        Raises:
            TooManyTriesError: *address*, the client's, has brought too many wrong tokens.
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
        """Return the cookie of a new session; None: the token is another one.

        Raises:
            TooManyTriesError: *address*, the client's, has brought too many wrong tokens.
        """
        if not self._is_token(token, address):
            return None
        session, now = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            live = [(each, ends) for each, ends in self._sessions.items() if ends > now]
            self._sessions = dict(live[-(_MOST_SESSIONS - 1) :])
            self._sessions[session] = now + _LASTS
        return session

    def log_out(self, cookie: str | None) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(cookie or "", None)

    def _is_token(self, said: str, address: str) -> bool:
        if self._token is None:
            return False
        self._throttle.take(address)
        if not _equal(said.strip(), self._token):
            return False
        self._throttle.give_back(address)
        return True


def _equal(said: str, wanted: bytes) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(said.encode("utf-8", "replace"), wanted)
