"""Serves the metrics to Prometheus, and the health to probes of Kubernetes and load balancers."""

from __future__ import annotations

import json
import logging
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Protocol, Self, runtime_checkable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.observe.metrics import CountersCollector
from pulsar_retry.policy.checks import not_blank, whole
from pulsar_retry.runtime.fork import free_in_child

_log = logging.getLogger("pulsar_retry")

#: Seconds after which a connection is closed on which nothing happens.
PATIENCE = 10.0
_LAST_PORT = 65_535
_LIVE, _READY = "/livez", "/readyz"

_COLLECTOR = CountersCollector()
_registered: weakref.WeakSet[CollectorRegistry] = weakref.WeakSet()
_registering = free_in_child(threading.Lock())


@runtime_checkable
class HasHealth(Protocol):
    """A subscriber, an asyncio subscriber or a dispatcher."""

    @property
    def health(self) -> Any:
        """Its state, and in words what is wrong (`pulsar_retry.Health`)."""


#: What is asked: one, or a collection, which may change later.
Watched = HasHealth | Iterable[HasHealth]

#: Returns the status and the JSON value of a page, for the query of the request.
Page = Callable[[str], tuple[HTTPStatus, object]]


def register_metrics(registry: CollectorRegistry = REGISTRY) -> CollectorRegistry:
    """Make *registry* show the metrics of every consumer of this process, and return it.

    Consumers always count, so it does not matter when this is called; nothing is registered before.
    A second call for the same registry does nothing. Thread-safe.

    Args:
        registry: The registry. The default is Prometheus' default registry.

    Raises:
        ConfigError: *registry* is not a registry.
    """
    given: object = registry
    if not isinstance(given, CollectorRegistry):
        accepted = "a prometheus_client.CollectorRegistry"
        raise ConfigError.bad("registry", given, accepted)
    with _registering:
        if registry not in _registered:
            registry.register(_COLLECTOR)
            _registered.add(registry)
    return registry


def own_registry() -> CollectorRegistry:
    """Return a registry that has only the metrics of this package."""
    return register_metrics(CollectorRegistry(auto_describe=False))


def start_metrics_server(
    port: int,
    addr: str = "127.0.0.1",
    registry: CollectorRegistry | None = None,
    *,
    health: Watched | None = None,
) -> MetricsServer:
    """Serve the metrics of every consumer of this process, for Prometheus to scrape.

    With *health*, it also answers probes, as JSON. ``/livez`` is 200, or 503 if a subscription has
    failed, so that the process has to be restarted. ``/readyz`` is 200 if each subscription is
    ``running``, and otherwise 503: at the start, while it is degraded, and while it stops.

    Consumers always count, so it does not matter when this is called.

    Args:
        port: The port to listen on. 0: a free port, which `MetricsServer.port` contains.
        addr: The address to listen on. With the default only this machine can scrape.
        registry: A registry to serve. This package's metrics are added to it. None: a new registry
            with only this package's metrics.
        health: A subscriber, an asyncio subscriber or a dispatcher, or a collection of these, to
            which you may add later. None: there are no probes.

    Returns:
        The server. It runs until it is closed or the process ends.

    Raises:
        ConfigError: an argument is invalid.
        PulsarRetryError: the server cannot listen on that address and port.
    """
    whole("port", port, 0, _LAST_PORT, accepted=f"0 to {_LAST_PORT}")
    not_blank("addr", addr, "an address of this machine")
    return serve_registry(
        own_registry() if registry is None else register_metrics(registry), port, addr, health
    )


def serve_registry(
    registry: CollectorRegistry,
    port: int,
    addr: str,
    health: Watched | None = None,
    pages: Mapping[str, Page] = MappingProxyType({}),
) -> MetricsServer:
    """Serve a registry, the probes of *health*, and *pages* by their paths.

    Raises:
        PulsarRetryError: the server cannot listen on that address and port.
    """
    if health is not None:
        _all_of(health)
    app = _with_pages(make_wsgi_app(registry), health, pages)
    try:
        found = socket.getaddrinfo(addr, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]

        class Server(_Server):
            address_family = family

        server = make_server(str(address[0]), port, app, Server, _Handler)
    except OSError as error:
        raise PulsarRetryError(f"cannot listen on {addr}, port {port}: {error}") from None
    return MetricsServer(server)


class MetricsServer:
    """A small HTTP server for Prometheus' scrapes, with its own threads. Thread-safe.

    Attributes:
        port: The port on which it listens.
        url: The URL of its pages, without a slash at the end.
    """

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        host, self.port = str(server.server_address[0]), server.server_port
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self._thread = threading.Thread(
            target=server.serve_forever, name="pulsar-retry-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. A second call does nothing; in a forked child, the parent goes on."""
        if not self._thread.is_alive():
            self._server.socket.close()
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingWSGIServer):
    """prometheus_client's server, which logs errors instead of printing them."""

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the server's
        """Log an exception of a handler. The usual reason is that its client has disconnected."""
        _log.debug("a request from %s has failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


def _all_of(watched: Watched) -> list[HasHealth]:
    """Return what is in *watched* at the moment.

    Raises:
        ConfigError: something has no health.
    """
    is_one = isinstance(watched, str | bytes) or not isinstance(watched, Iterable)
    found: list[Any] = [watched] if is_one else list(watched)  # type: ignore[arg-type]
    for each in found:
        if not isinstance(each, HasHealth):
            accepted = "a subscriber, a dispatcher, or a collection of these"
            raise ConfigError.bad("health", each, accepted)
    return found


def _with_pages(
    app: WSGIApplication, watched: Watched | None, pages: Mapping[str, Page]
) -> WSGIApplication:
    """Return *app* with *pages*, by their paths, and with the pages ``/livez`` and ``/readyz``."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path in pages:
            status, value = pages[path](environ.get("QUERY_STRING", ""))
        elif path in {_LIVE, _READY}:
            status, value = _probe(path, watched)
        else:
            return app(environ, start_response)
        body = json.dumps(value).encode()
        start_response(
            f"{status.value} {status.phrase}",
            [("Content-Type", "application/json"), ("Content-Length", str(len(body)))],
        )
        return [body]

    return answer


def _probe(path: str, watched: Watched | None) -> tuple[HTTPStatus, dict[str, object]]:
    """Return the status and the value of the page of a probe.

    ``/livez`` is 503 if a subscription has failed: another process may do better. ``/readyz`` is
    200 if there is a subscription and all of them are well; while one stops, it is 503.
    """
    if watched is None:
        return HTTPStatus.NOT_FOUND, {"error": "no health was given"}
    found = [each.health for each in _all_of(watched)]
    is_live = all(each.state != "failed" for each in found)
    is_ready = bool(found) and all(each.state == "running" for each in found)
    is_well = is_live if path == _LIVE else is_ready
    states = [{"state": each.state, "reason": each.reason} for each in found]
    return (
        HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE,
        {"live": is_live, "ready": is_ready, "subscriptions": states},
    )
