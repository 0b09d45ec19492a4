"""An issuer of OAuth2, which gives its token to who knows the secret."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


class Issuer(ThreadingHTTPServer):
    """Gives *token*, and remembers who asked for it."""

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.token = token
        self.asked: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    """Where tokens are, and the tokens."""

    server: Issuer

    def do_GET(self) -> None:
        """Say where tokens are."""
        self._answer({"token_endpoint": f"{self.server.url}/token"})

    def do_POST(self) -> None:
        """Give a token."""
        length = int(self.headers["Content-Length"])
        self.server.asked.append(parse_qs(self.rfile.read(length).decode()))
        self._answer({"access_token": self.server.token, "expires_in": 3600})

    def _answer(self, fields: dict[str, object]) -> None:
        body = json.dumps(fields).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def issuing(token: str) -> Iterator[Issuer]:
    """Run an issuer of *token*."""
    with Issuer(token) as issuer:
        thread = threading.Thread(target=issuer.serve_forever)
        thread.start()
        yield issuer
        issuer.shutdown()
        thread.join()
