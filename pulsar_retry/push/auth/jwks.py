"""A key set from a URL, kept for as long as its server allows."""

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

#: Seconds for which keys are kept: the server's time within these bounds, or else the usual time.
_SHORTEST, _USUAL, _LONGEST = 60.0, 3600.0, 86_400.0
#: Seconds between two fetches because of an unknown key or a failed fetch. Requests from strangers
#: must not cause a fetch each time.
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
        """Make an empty cache; *fetch* returns a key set, and for how many seconds it is valid."""
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._until = -1.0
        self._tried_at: float | None = None

    def get(self, key_id: str) -> Mapping[str, Any] | None:
        """Return the key with this id; None if there is none.

        Expired keys are used while their server does not answer. A caller that asks for a known key
        never waits for a fetch that another thread has begun.

        Raises:
            KeysUnavailableError: no keys have ever been fetched.
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
                raise KeysUnavailableError(
                    "the keys could not be fetched, and the last attempt was only a moment ago"
                )
            return
        self._tried_at = now
        try:
            keys, max_age = self._fetch()
            self._keys = by_id(keys)
        # RecursionError: deeply nested lists are valid JSON.
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            if not self._keys:
                raise KeysUnavailableError("the keys cannot be fetched") from error
            return
        age = _USUAL if max_age is None else min(max(max_age, _SHORTEST), _LONGEST)
        self._until = now + age


def by_id(keys: object) -> dict[str, Mapping[str, Any]]:
    """Return the keys of a key set by id; members that are not keys are left out.

    Raises:
        ValueError: this is not a key set, or it has no keys.
    """
    members = keys.get("keys") if isinstance(keys, Mapping) else None
    if not isinstance(members, Sequence):
        raise ValueError("not a key set")  # noqa: TRY004 - a ValueError, as for invalid JSON
    found = {str(key.get("kid", "")): key for key in members if isinstance(key, Mapping)}
    if not found:
        raise ValueError("a key set without keys")
    return found


class _StaysSecure(urllib.request.HTTPRedirectHandler):
    """Follows only redirects to https: otherwise an attacker on the network could supply keys."""

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        """Return the next request, or None to use the redirect as the answer, which is an error."""
        is_secure = urlsplit(args[-1]).scheme == "https"
        return super().redirect_request(*args) if is_secure else None


class _LoopbackConnection(http.client.HTTPConnection):
    """A connection without TLS that is used only if it leads to this machine."""

    def connect(self) -> None:
        """Connect, and check the address, because a name may resolve to any address."""
        super().connect()
        address = str(self.sock.getpeername()[0])
        if not is_loopback_name(address):
            self.close()
            raise OSError(
                f"keys are fetched without TLS only from this machine, not from {address}"
            )


class _ToLoopback(urllib.request.HTTPHandler):
    """Opens ``http://`` URLs with such connections."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open *request*."""
        return self.do_open(_LoopbackConnection, request)


def fetcher(url: str) -> Callable[[], Fetched]:
    """Return a function that fetches a key set from an ``https`` URL, or ``http`` to loopback.

    Redirects are followed; from ``https`` only to ``https``. Without TLS, the address of the
    connection must be loopback, whatever the host name is.

    Raises:
        ConfigError: the URL is invalid.
    """
    endpoint = PushEndpoint.of(url)
    # A proxy cannot reach loopback.
    handlers: tuple[urllib.request.BaseHandler, ...] = (
        (_StaysSecure(),) if endpoint.is_tls else (urllib.request.ProxyHandler({}), _ToLoopback())
    )

    def fetch() -> Fetched:
        opener = urllib.request.build_opener(*handlers)
        try:
            response = opener.open(url, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()  # otherwise its connection stays open as long as the error exists
            raise
        with response:
            content = response.read(_MOST + 1)
            if len(content) > _MOST:
                raise ValueError("the key set is too long")
            match = _MAX_AGE.search(response.headers.get("Cache-Control", ""))
        return json.loads(content), float(match[1]) if match else None

    return fetch
