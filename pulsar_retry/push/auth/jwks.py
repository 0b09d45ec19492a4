"""A key set from a URL, kept as long as its server allows."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pulsar_retry.push.auth.middleware import KeysUnavailableError
from pulsar_retry.push.http.endpoint import PushEndpoint, is_loopback_name

#: Seconds for which keys are kept: what the server says within the bounds, else the usual time.
_SHORTEST, _USUAL, _LONGEST = 60.0, 3600.0, 86_400.0
#: Seconds between two fetches because of a key that is not known, or of one that has failed: what
#: strangers send must not make us fetch all the time.
_COOLDOWN = 30.0
_TIMEOUT = 10.0
_MOST = 256 * 1024

_MAX_AGE = re.compile(r"max-age=([0-9]{1,9})")

Fetched = tuple[object, float | None]


class KeyCache:
    """JSON Web Keys by their ids. Thread-safe."""

    def __init__(
        self,
        fetch: Callable[[], Fetched],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty one; *fetch* returns a key set, and for how many seconds it holds."""
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._until = -1.0
        self._tried_at: float | None = None

    def get(self, key_id: str) -> Mapping[str, Any] | None:
        """Return the key of that id; None: there is none.

        Keys that are too old are used on while their server does not answer. Who asks for a key
        that is known never waits for a fetch that another one has begun.

        Raises:
            KeysUnavailableError: none were ever fetched.
        """
        now, known = self._clock(), self._keys.get(key_id)
        if known is not None and now < self._until:
            return known
        if not self._lock.acquire(blocking=known is None):
            return known
        try:
            now = self._clock()
            if now >= self._until or key_id not in self._keys:
                self._refresh(now)
            return self._keys.get(key_id)
        finally:
            self._lock.release()

    def _refresh(self, now: float) -> None:
        if self._tried_at is not None and now - self._tried_at < _COOLDOWN:
            if not self._keys:
                raise KeysUnavailableError("the keys could not be fetched a moment ago")
            return
        self._tried_at = now
        try:
            keys, max_age = self._fetch()
            self._keys = by_id(keys)
        # RecursionError: lists in lists are JSON as well.
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            if not self._keys:
                raise KeysUnavailableError("the keys cannot be fetched") from error
            return
        age = _USUAL if max_age is None else min(max(max_age, _SHORTEST), _LONGEST)
        self._until = now + age


def by_id(keys: object) -> dict[str, Mapping[str, Any]]:
    """Return the keys of a key set; members that are none are left out.

    Raises:
        ValueError: it is no key set, or has no keys.
    """
    members = keys.get("keys") if isinstance(keys, Mapping) else None
    if not isinstance(members, Sequence):
        raise ValueError("no key set")  # noqa: TRY004 - like what is no JSON
    found = {str(key.get("kid", "")): key for key in members if isinstance(key, Mapping)}
    if not found:
        raise ValueError("a key set without keys")
    return found


class _StaysSecure(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to anything but https, where anyone on the way could give us keys."""

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        """Return the next request; None: the redirect is the answer, and so an error."""
        is_secure = urlsplit(args[-1]).scheme == "https"
        return super().redirect_request(*args) if is_secure else None


class _LoopbackConnection(http.client.HTTPConnection):
    """A connection without TLS, on which nothing is said unless it leads to this machine."""

    def connect(self) -> None:
        """Connect; the address is looked at, for a name may lead anywhere."""
        super().connect()
        address = str(self.sock.getpeername()[0])
        if not is_loopback_name(address):
            self.close()
            raise OSError(f"keys are fetched without TLS from this machine alone, not {address}")


class _ToLoopback(urllib.request.HTTPHandler):
    """Opens ``http://`` by such connections."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open *request*."""
        return self.do_open(_LoopbackConnection, request)


def fetcher(url: str) -> Callable[[], Fetched]:
    """Return a function that fetches a key set from an ``https`` URL; ``http`` to loopback.

    A redirect is followed; from ``https`` to ``https`` alone. Without TLS the address that was
    connected to has to be loopback, whatever the name says.

    Raises:
        ConfigError: it is none.
    """
    endpoint = PushEndpoint.of(url)
    # No proxy leads to loopback.
    handlers: tuple[urllib.request.BaseHandler, ...] = (
        (_StaysSecure(),) if endpoint.is_tls else (urllib.request.ProxyHandler({}), _ToLoopback())
    )

    def fetch() -> Fetched:
        opener = urllib.request.build_opener(*handlers)
        try:
            response = opener.open(url, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()  # else its connection lives as long as the error
            raise
        with response:
            content = response.read(_MOST + 1)
            if len(content) > _MOST:
                raise ValueError("the key set is too long")
            match = _MAX_AGE.search(response.headers.get("Cache-Control", ""))
        return json.loads(content), float(match[1]) if match else None

    return fetch
