"""Checks whether a broker is ready."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable

__all__ = ["is_ready", "wait_until"]

_TIMEOUT = 5.0  # seconds for one answer
_POLL = 0.1
# These are created last, after the health check succeeds. Every client needs one of them.
_NAMESPACES = ("public/default", "pulsar/system")


def is_ready(admin_url: str, token: str | None = None) -> bool:
    """Tell whether the broker is healthy and has created its first namespaces."""
    paths = ["brokers/health", *(f"namespaces/{namespace}" for namespace in _NAMESPACES)]
    return all(_answers(f"{admin_url}/admin/v2/{path}", token) for path in paths)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until *condition* holds; return False if it does not within *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def _answers(url: str, token: str | None) -> bool:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - a broker's http(s) URL
    # A proxy from the environment cannot reach our loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT):
            return True
    except (OSError, http.client.HTTPException):  # URLError and HTTPError are OSErrors
        return False
