"""A Maven repository on loopback that does as it is told, and a jar to fetch from it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import pytest

from pulsar_retry.standalone.jars.lock import Jar


@attrs.define
class Repository:
    """What the server has, how it answers, and what it was asked."""

    url: str
    files: dict[str, bytes] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)
    #: Statuses to answer with first, instead of the file.
    failures: list[HTTPStatus] = attrs.field(factory=list)
    #: How many bytes of the first answers' bodies are sent before the connection ends.
    cut_bodies: list[int] = attrs.field(factory=list)
    #: Called before each answer.
    before_answer: Callable[[], object] = lambda: None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def add(self, content: bytes, name: str = "thing", platform: str = "any") -> Jar:
        """Serve *content* as a jar, and return what the lock file would say of it."""
        sha256 = hashlib.sha256(content).hexdigest()
        jar = Jar(f"org.example:{name}:1.0", platform, len(content), sha256)
        self.files[f"/{jar.path}"] = content
        return jar

    def take(self, plan: list[HTTPStatus] | list[int]) -> HTTPStatus | int | None:
        """Return the next item of a plan, or None when it is used up."""
        with self._lock:
            return plan.pop(0) if plan else None


def _handler(repository: Repository) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            repository.asked.append(self.path)
            repository.before_answer()
            failure = repository.take(repository.failures)
            content = repository.files.get(self.path)
            if failure is not None or content is None:
                self.send_error(failure or HTTPStatus.NOT_FOUND)
            else:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: repository.take(repository.cut_bodies)])

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    return Handler


@pytest.fixture
def repository() -> Iterator[Repository]:
    """Serve an empty Maven repository on a free port of loopback."""
    repository = Repository("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(repository))
    repository.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield repository
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a folder for the jars."""
    return tmp_path / "cache"
