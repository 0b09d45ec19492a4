"""Checks whether a broker is ready."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

__all__ = ["DEFAULT_NAMESPACE", "is_ready", "wait_until", "why_not_ready"]

_TIMEOUT = 5.0  # seconds for one answer
_POLL = 0.1
DEFAULT_NAMESPACE = "public/default"
# These are created last, after the health check succeeds. Every client needs one of them.
_NAMESPACES = (DEFAULT_NAMESPACE, "pulsar/system")


def is_ready(
    admin_url: str, token: str | None = None, namespaces: Sequence[str] = _NAMESPACES
) -> bool:
    """Tell whether the broker is healthy and has created its first namespaces."""
    return not why_not_ready(admin_url, token, namespaces)


def why_not_ready(
    admin_url: str, token: str | None = None, namespaces: Sequence[str] = _NAMESPACES
) -> str:
    """Return the first request that failed, with the reason; "" if the broker is ready."""
    for path in ("brokers/health", *(f"namespaces/{namespace}" for namespace in namespaces)):
        url = f"{admin_url}/admin/v2/{path}"
        if problem := _problem(url, token):
            return f"GET {url}: {problem}"
    return ""


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until *condition* holds; return False if it does not within *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def _problem(url: str, token: str | None) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    # A proxy from the environment cannot reach our loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return str(error)
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
