"""Answers the probes of Kubernetes and of load balancers: does this process live, is it ready?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Protocol, runtime_checkable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from pulsar_retry.errors import ConfigError

_LIVE, _READY = "/livez", "/readyz"


class _Health(Protocol):
    @property
    def state(self) -> Any: ...

    @property
    def reason(self) -> str: ...


@runtime_checkable
class HasHealth(Protocol):
    """A subscriber, an asyncio subscriber or a dispatcher."""

    @property
    def health(self) -> _Health:
        """Its state, and in words what is wrong."""


#: What is asked: one, or a collection, which may change later.
Watched = HasHealth | Iterable[HasHealth]


def checked(watched: Watched) -> Callable[[], list[HasHealth]]:
    """Return a function that returns what is in *watched* at the moment.

    Raises:
        ConfigError: something has no health.
    """

    def all_of() -> list[HasHealth]:
        return [watched] if isinstance(watched, HasHealth) else list(watched)

    accepted = "a subscriber, a dispatcher, or a collection of these"
    if not isinstance(watched, HasHealth | Iterable) or isinstance(watched, str | bytes):
        raise ConfigError.bad("health", watched, accepted)
    for each in all_of():
        if not isinstance(each, HasHealth):
            raise ConfigError.bad("health", each, accepted)
    return all_of


#: Returns the status and the JSON value of a page, for the query of the request.
Page = Callable[[str], tuple[HTTPStatus, object]]


def with_pages(
    app: WSGIApplication,
    watched: Callable[[], list[HasHealth]] | None,
    pages: Mapping[str, Page],
) -> WSGIApplication:
    """Return *app* with *pages*, by their paths, and with the pages ``/livez`` and ``/readyz``.

    ``/livez`` is 503 if a subscription has failed: another process may do better. ``/readyz`` is
    200 if there is a subscription and all of them are well; while one stops, it is 503.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path in pages:
            return _json(start_response, *pages[path](environ.get("QUERY_STRING", "")))
        if path not in {_LIVE, _READY}:
            return app(environ, start_response)
        if watched is None:
            return _json(start_response, HTTPStatus.NOT_FOUND, {"error": "no health was given"})
        found = [each.health for each in watched()]
        is_live = all(each.state != "failed" for each in found)
        is_ready = bool(found) and all(each.state == "running" for each in found)
        fine = is_live if path == _LIVE else is_ready
        status = HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE
        facts = [{"state": each.state, "reason": each.reason} for each in found]
        told = {"live": is_live, "ready": is_ready, "subscriptions": facts}
        return _json(start_response, status, told)

    return answer


def _json(start_response: StartResponse, status: HTTPStatus, told: object) -> list[bytes]:
    body = json.dumps(told).encode()
    start_response(
        f"{status.value} {status.phrase}",
        [("Content-Type", "application/json"), ("Content-Length", str(len(body)))],
    )
    return [body]
