"""The dispatcher's own small HTTP server: health, metrics and keys."""

from __future__ import annotations

import json
import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl

import attrs

from pulsar_retry.observe.bounded import Bounded
from pulsar_retry.push.auth.tokens import ServiceAccount
from pulsar_retry.push.dispatcher import Dispatcher

_log = logging.getLogger("pulsar_retry")

_JSON, _METRICS = "application/json", "text/plain; version=0.0.4; charset=utf-8"

Reply = tuple[HTTPStatus, str, bytes]


@attrs.frozen
class Pages:
    """The pages of a dispatcher over HTTP, without a socket.

    Attributes:
        dispatcher: The dispatcher.
        account: The account whose public key is served; None serves no key.
    """

    dispatcher: Dispatcher
    account: ServiceAccount | None = None

    def get(self, path: str, query: str = "") -> Reply:
        """Answer a GET: ``/livez``, ``/readyz`` or ``/metrics``.

        ``/livez``, also named ``/healthz``, is 200 while the dispatcher runs, from its start to its
        end. ``/readyz`` is 200 while its health is ``running`` and it is neither paused nor
        stopping. Otherwise the status is 503.

        With an account there are also ``/.well-known/jwks.json`` (its public key),
        ``/oauth2/v1/certs`` (the same key in a certificate, as Google serves it), and
        ``/tokeninfo?id_token=…``.
        """
        match path:
            case "/livez" | "/healthz" | "/readyz":
                return self._health(ready=path == "/readyz")
            case "/metrics":
                return HTTPStatus.OK, _METRICS, self.dispatcher.metrics.text()
            case "/.well-known/jwks.json" if self.account is not None:
                return _json(HTTPStatus.OK, self.account.jwks())
            case "/oauth2/v1/certs" if self.account is not None:
                return _json(HTTPStatus.OK, self.account.certificates())
            case "/tokeninfo" if self.account is not None:
                info = self.account.token_info(dict(parse_qsl(query)).get("id_token", ""))
                return _json(HTTPStatus.OK, info) if info else _NO_TOKEN
        return _json(HTTPStatus.NOT_FOUND, {"error": "there is no such page"})

    def _health(self, *, ready: bool) -> Reply:
        pace, health = self.dispatcher.pace, self.dispatcher.health
        running = health.state not in {"new", "stopped", "failed"}
        is_ready = health.state == "running" and not (pace.paused or pace.stopping)
        fine = is_ready if ready else running
        return _json(
            HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE,
            {
                "running": running,
                "state": health.state,
                "reason": health.reason,
                "paused": pace.paused,
                "stopping": pace.stopping,
                "endpoint": self.dispatcher.endpoint,
                "window": pace.window,
                "outstanding": pace.outstanding,
                "backoff_seconds": round(pace.delay, 3),
                "latency_seconds": round(pace.latency, 6),
            },
        )


def _json(status: HTTPStatus, value: Any) -> Reply:
    return status, _JSON, json.dumps(value).encode()


_NO_TOKEN = _json(
    HTTPStatus.BAD_REQUEST, {"error": "invalid_token", "error_description": "Invalid Value"}
)


class _Server(Bounded, HTTPServer):
    pass


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class Server:
    """Serves a dispatcher's `Pages` on a port, on background threads; a context manager.

    Attributes:
        host: The address that it listens on, in the form for URLs: IPv6 addresses are in brackets.
        port: The port.
    """

    def __init__(self, pages: Pages, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on a port.

        Args:
            pages: What it serves.
            host: The address. Use loopback unless others may see health and metrics.
            port: The port; 0 chooses a free one.

        Raises:
            OSError: it cannot listen there.
        """
        kind = _IPv6Server if ":" in host else _Server
        self._server = kind((host, port), _handler(pages))
        actual, self.port = str(self._server.server_address[0]), self._server.server_port
        self.host = f"[{actual}]" if ":" in actual else actual
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="pulsar-retry-push-server", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "pulsar-retry"
        sys_version = ""

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            status, kind, content = pages.get(path, query)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: object = "-", _size: object = "-") -> None:
            path = self.path.partition("?")[0]  # the query may contain tokens
            _log.debug("%s %s: %s", self.command, path, code)

        def log_message(self, *_: object) -> None:
            _log.debug("a request could not be understood")

    return Handler
