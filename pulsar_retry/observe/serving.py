"""Showing the metrics to Prometheus."""

from __future__ import annotations

import socket
import threading
import weakref
from typing import Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, make_wsgi_app

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.observe import multiprocess, sharing
from pulsar_retry.observe.bounded import Bounded
from pulsar_retry.observe.metrics import LedgerCollector
from pulsar_retry.policy.checks import whole

_COLLECTOR = LedgerCollector()
_registered: weakref.WeakSet[CollectorRegistry] = weakref.WeakSet()
_guard = threading.Lock()


class _Server(Bounded, WSGIServer):
    pass


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


class MetricsServer:
    """A small HTTP server that Prometheus scrapes, on threads of its own. Thread-safe.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self.port: int = server.server_port
        self._thread = threading.Thread(
            target=server.serve_forever, name="pulsar-retry-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. A second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def register_metrics(registry: CollectorRegistry = REGISTRY) -> CollectorRegistry:
    """Have *registry* show the metrics of every consumer of this process; return it.

    Consumers count in any case, whenever this is called; nothing is registered before. A second
    call for the same registry does nothing. With ``PROMETHEUS_MULTIPROC_DIR`` the counts are in
    that directory anyway: use `prometheus_client.multiprocess.MultiProcessCollector` then, as for
    metrics of your own, or `start_metrics_server`. Thread-safe.

    Args:
        registry: Prometheus' default one, unless you have another.

    Raises:
        ConfigError: it is no registry.
    """
    given: object = registry
    if not isinstance(given, CollectorRegistry):
        accepted = "a prometheus_client.CollectorRegistry"
        raise ConfigError.bad("registry", given, accepted)
    with _guard:
        if not sharing.is_on() and registry not in _registered:
            registry.register(_COLLECTOR)
            _registered.add(registry)
    return registry


def own_registry() -> CollectorRegistry:
    """Return a registry with the metrics of this package and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    if sharing.is_on():
        multiprocess.show_all_processes(registry)
        return registry
    return register_metrics(registry)


def metrics_text() -> bytes:
    """Return the metrics of this package as Prometheus reads them."""
    return generate_latest(own_registry())


def start_metrics_server(
    port: int, addr: str = "127.0.0.1", registry: CollectorRegistry | None = None
) -> MetricsServer:
    """Serve the metrics of every consumer of this process, for Prometheus to scrape.

    Consumers count in any case, so it does not matter when this is called. With
    ``PROMETHEUS_MULTIPROC_DIR`` it serves the metrics of all processes that share that directory.

    Args:
        port: Where to listen; 0: a free one, which `MetricsServer.port` tells.
        addr: The address to listen on; loopback unless others are to scrape.
        registry: Served instead of this package's metrics alone, which are registered there.

    Returns:
        The server; it runs until it is closed or the process ends.

    Raises:
        ConfigError: *port* or *registry* is none.
        PulsarRetryError: it cannot listen there.
    """
    whole("port", port, 0, _MOST, accepted=f"0 to {_MOST}")
    return serve_registry(
        own_registry() if registry is None else register_metrics(registry), port, addr
    )


def serve_registry(registry: CollectorRegistry, port: int, addr: str) -> MetricsServer:
    """Serve a registry.

    Raises:
        PulsarRetryError: it cannot listen there.
    """
    try:
        found = socket.getaddrinfo(addr, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        kind = _IPv6Server if family == socket.AF_INET6 else _Server
        server = make_server(str(address[0]), port, make_wsgi_app(registry), kind, _Handler)
    except OSError as error:
        raise PulsarRetryError(f"cannot listen on {addr}, port {port}: {error}") from None
    return MetricsServer(server)


_MOST = 65_535
