"""Access to the console: host names, tokens, roles, sessions, and a check of forms."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import time
import urllib.parse
from collections.abc import Sequence
from typing import Literal

import attrs

from pulsar_retry._throttle import Throttle, TooManyTriesError
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.operator_name import operator_name

COOKIE = "pulsar-retry-console"
#: The shortest token, in characters: shorter ones can be guessed.
_SHORTEST = 16
#: How long a session lasts, in seconds, and how many sessions there may be.
_SESSION_SECONDS, _MOST_SESSIONS = 12 * 3600.0, 1000
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


Role = Literal["viewer", "operator"]


@attrs.frozen
class User:
    """Somebody who uses the console.

    Attributes:
        name: Who, for the audit log.
        role: ``viewer`` may read. ``operator`` may also change letters and subscriptions.
    """

    name: str
    role: Role

    @property
    def operates(self) -> bool:
        """Whether the user may change something."""
        return self.role == "operator"


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
        self,
        host: str,
        *,
        token: str | None = None,
        viewer_token: str | None = None,
        allow_hosts: Sequence[str] = (),
        by_oidc: bool = False,
    ) -> None:
        """Make the access rules of a console.

        Args:
            host: The address that it listens on.
            token: The token to log in with as an operator. Without any token and without OIDC,
                nobody logs in, and everybody who reaches the console is an operator.
            viewer_token: The token to log in with as a viewer.
            allow_hosts: Names by which it is reached through a proxy.
            by_oidc: Whether users log in at an OIDC provider.

        Raises:
            ConfigError: a token is required and missing, or it is too short, or both are the same.
        """
        local = is_loopback(host)
        if token is None and not by_oidc and (allow_hosts or not local):
            raise ConfigError(
                "access_token_file: expected a file that holds a token, because other machines may "
                "reach the console"
            )
        tokens: tuple[tuple[str, str | None, Role], ...] = (
            ("access_token_file", token, "operator"),
            ("viewer_token_file", viewer_token, "viewer"),
        )
        for name, each, _ in tokens:
            if each is not None and len(each) < _SHORTEST:
                raise ConfigError(f"{name}: expected a token of {_SHORTEST} characters or more")
        if token is None and viewer_token is not None and not by_oidc:
            raise ConfigError("viewer_token_file: expected access_token_file, too")
        if token is not None and token == viewer_token:
            raise ConfigError("viewer_token_file: expected another token than the operators'")
        self._tokens = [(each.encode(), role) for _, each, role in tokens if each is not None]
        self._by_oidc = by_oidc
        self._hosts: frozenset[str] | None = None
        if local or allow_hosts:
            self._hosts = _LOOPBACK | {host.lower()} | {host_of(each) for each in allow_hosts}
        #: The token in every form; a foreign page cannot read it.
        self.form_token = secrets.token_urlsafe(32)
        self._sessions: dict[str, tuple[float, User]] = {}
        self._lock = threading.Lock()
        self._throttle, self._failures = Throttle(), Throttle()
        self._begun = Throttle(what="logins that did not end")

    @property
    def needs_login(self) -> bool:
        """Whether a login is required."""
        return bool(self._tokens) or self._by_oidc

    @property
    def has_tokens(self) -> bool:
        """Whether one can log in with a token."""
        return bool(self._tokens)

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

    def user(self, cookie: str | None, authorization: str | None, address: str = "") -> User | None:
        """Return who sends a request, by its session or its token; None if nobody is known.

        Raises:
            TooManyTriesError: the client *address* has sent too many wrong tokens.
        """
        if not self.needs_login:
            return User(operator_name(), "operator")
        with self._lock:
            ends, user = self._sessions.get(cookie or "", (0.0, None))
        if user is not None and time.monotonic() < ends:
            return user
        kind, _, token = (authorization or "").partition(" ")
        return self._bearer(token, address) if kind.lower() == "bearer" else None

    def log_in(self, token: str, address: str = "") -> str | None:
        """Return the cookie of a new session; None if the token is wrong.

        Raises:
            TooManyTriesError: the client *address* has sent too many wrong tokens.
        """
        user = self._bearer(token, address)
        return None if user is None else self.admit(user)

    def begin_login(self, address: str) -> None:
        """Count a login at the provider, until `end_login`.

        Raises:
            TooManyTriesError: the client *address* has begun too many that did not end.
        """
        self._begun.take(address)

    def end_login(self, address: str) -> None:
        """Uncount a login that has succeeded."""
        self._begun.give_back(address)

    def admit(self, user: User) -> str:
        """Return the cookie of a new session of a user whose identity was checked."""
        session, now = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            live = [(each, known) for each, known in self._sessions.items() if known[0] > now]
            self._sessions = dict(live[-(_MOST_SESSIONS - 1) :])
            self._sessions[session] = (now + _SESSION_SECONDS, user)
        return session

    def records_failure(self, address: str) -> bool:
        """Tell whether a login that failed at the provider is to be recorded: not too many are."""
        try:
            self._failures.take(address)
        except TooManyTriesError:
            return False
        return True

    def log_out(self, cookie: str | None) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(cookie or "", None)

    def _bearer(self, given: str, address: str) -> User | None:
        """Return the user of a token; None if the token is wrong."""
        if not self._tokens:
            return None
        self._throttle.take(address)
        # All are compared, so that the time does not depend on which one is right.
        roles = [role for token, role in self._tokens if _equal(given.strip(), token)]
        if not roles:
            return None
        self._throttle.give_back(address)
        return User(f"{roles[0]} token from {address or 'unknown'}", roles[0])


def _equal(given: str, wanted: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted)
