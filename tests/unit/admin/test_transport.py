"""The client of the REST API: redirects, retries, errors and secrets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
import pytest
import urllib3

import pulsar_retry as pr
from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import (
    _RETRIES,
    NoAnswerError,
    NotShownError,
    Transport,
    topic_path,
)
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay import Cluster


@attrs.define
class Api:
    """A server that answers what it is told to, and remembers what it was asked."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = attrs.field(factory=list)
    asked: list[tuple[str, str, str | None, bytes]] = attrs.field(factory=list)

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        """Add an answer."""
        content = b"" if body is None else json.dumps(body).encode()
        self.answers.append((status, headers, content))


def serve() -> tuple[Api, ThreadingHTTPServer]:
    """Start a server."""
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            token = self.headers.get("Authorization")
            api.asked.append((self.command, self.path, token, self.rfile.read(length)))
            status, headers, body = api.answers.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - as http.server has it

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return api, server


@pytest.fixture
def api() -> Iterator[Api]:
    """Give a server."""
    api, server = serve()
    yield api
    server.shutdown()
    server.server_close()


def transport(api: Api, **options: Any) -> Transport:
    """Return a transport to it."""
    return Transport(Cluster(admin_url=api.url, **options))


def test_what_is_sent_and_what_comes_back(api) -> None:
    """JSON both ways, who we are, and a query without what is None."""
    api.answer(200, {"a": 1})

    found = transport(api, token="secret").json("PUT", "x/y", {"b": 2}, force=True, other=None)

    assert {"a": 1} == found
    assert [("PUT", "/admin/v2/x/y?force=true", "Bearer secret", b'{"b":2}')] == api.asked


def test_the_owner_of_a_topic_is_on_another_broker(api) -> None:
    """It gets the request with our token and its body, as from the Java client."""
    owner, server = serve()
    owner.answer(200, [1])
    api.answer(307, Location=f"{owner.url}/admin/v2/x")

    found = transport(api, token="secret").json("POST", "x", {"b": 2})

    assert [1] == found
    assert [("POST", "/admin/v2/x", "Bearer secret", b'{"b":2}')] == owner.asked
    server.shutdown()
    server.server_close()


def test_redirects_without_end(api) -> None:
    """It is an error, not a loop."""
    for _ in range(6):
        api.answer(307, Location=f"{api.url}/admin/v2/x")

    with pytest.raises(pr.AdminError, match="too many redirects"):
        transport(api).json("GET", "x")
    assert not api.answers


@pytest.mark.parametrize("target", ["http://b/admin/v2/x", "HTTP://b/admin/v2/x"])
def test_no_token_goes_from_tls_to_plain_text(target) -> None:
    """A redirect that would send it so is refused."""
    answer = urllib3.HTTPResponse(status=307, headers={"Location": target})
    with pytest.raises(urllib3.exceptions.HTTPError, match="refused a redirect from https to http"):
        _RETRIES.increment("PUT", "https://a/admin/v2/x", response=answer)
    assert _RETRIES.increment("PUT", "http://a/admin/v2/x", response=answer)


@pytest.mark.parametrize(
    "error",
    [
        urllib3.exceptions.SSLError("no trust"),
        urllib3.exceptions.ProxyError("no way", OSError("no tunnel")),
        urllib3.exceptions.ProtocolError("it hung up"),
    ],
)
def test_no_error_is_tried_without_end(error) -> None:
    """Whatever kind urllib3 counts it as."""
    retries = _RETRIES
    for _ in range(4):
        retries = retries.increment("GET", "/x", error=error)

    with pytest.raises(urllib3.exceptions.MaxRetryError):
        retries.increment("GET", "/x", error=error)


NOWHERE = urllib3.connection.HTTPConnection("nowhere")


@pytest.mark.parametrize(
    "error",
    [
        urllib3.exceptions.NewConnectionError(NOWHERE, "refused"),
        urllib3.exceptions.NameResolutionError("nowhere", NOWHERE, socket.gaierror()),
        urllib3.exceptions.ConnectTimeoutError("late"),
        urllib3.exceptions.ReadTimeoutError(urllib3.HTTPConnectionPool("nowhere"), "/x", "late"),
    ],
)
def test_where_nothing_answers_is_said_at_once(error) -> None:
    """Such an error is not tried again, although nothing was changed."""
    with pytest.raises(type(error)):
        _RETRIES.increment("GET", "/x", error=error)


def test_reading_is_tried_again(api) -> None:
    """A broker that restarts, or gives a topic away, answers 503 for a moment."""
    api.answer(503)
    api.answer(200, "fine")

    assert "fine" == transport(api).json("GET", "x")


def test_changes_are_made_once(api) -> None:
    """Nobody knows whether the first one was."""
    api.answer(503, {"reason": "not yet"})

    with pytest.raises(pr.AdminError, match=r"x: not yet \(503\)"):
        transport(api).json("POST", "x")
    assert 1 == len(api.asked)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, pr.AdminForbiddenError),
        (403, pr.AdminForbiddenError),
        (404, pr.AdminNotFoundError),
        (409, pr.AdminConflictError),
        (412, pr.AdminConflictError),
        (500, pr.AdminError),
    ],
)
def test_errors_say_what_the_broker_says(api, status, kind) -> None:
    """With the status, the path and the reason; and no secret."""
    api.answer(status, {"reason": "because"})

    with pytest.raises(pr.AdminError) as caught:
        transport(api, token="secret").json("DELETE", "a/b")

    assert kind is type(caught.value)
    assert (status, "a/b", "because") == (
        caught.value.status,
        caught.value.path,
        caught.value.reason,
    )
    assert "secret" not in f"{caught.value!r}{caught.value}"


def test_a_topic_without_an_owner_is_no_conflict(api) -> None:
    """A broker that has just started says so with 412; it does not mean that something exists."""
    api.answer(412, {"reason": "Failed to find ownership for topic:t"})

    with pytest.raises(pr.AdminError) as caught:
        transport(api).json("PUT", "x")
    assert pr.AdminError is type(caught.value)


def test_an_answer_that_is_no_json(api) -> None:
    """Something else listens there."""
    api.answers.append((200, {}, b"<html>hello</html>"))

    with pytest.raises(pr.AdminError, match="is this Pulsar"):
        transport(api).json("GET", "x")


@pytest.mark.parametrize("content", [b"{}", b""])
def test_what_is_no_list_is_no_empty_list(api, content) -> None:
    """It is another server's; the error names the URL."""
    api.answers += [(200, {}, content)] * 3
    with Cluster(admin_url=api.url).admin() as admin:
        for ask in (
            admin.namespaces.all,
            lambda: admin.namespaces.topics("a/b"),
            lambda: admin.subscriptions.names("a/b/c"),
        ):
            with pytest.raises(pr.AdminError, match=f"{api.url} answered with something that is"):
                ask()


def test_a_server_that_never_answers(monkeypatch) -> None:
    """It is asked once: that has taken long already."""
    monkeypatch.setattr("pulsar_retry.admin.transport._TIMEOUT", urllib3.Timeout(0.2))
    with socket.create_server(("127.0.0.1", 0)) as server:  # connections wait in its queue
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with (
            Cluster(admin_url=url).admin() as admin,
            pytest.raises(NoAnswerError, match=f"{url} was not reached: ReadTimeoutError"),
        ):
            admin.namespaces.topics("public/default")
        server.settimeout(30)
        server.accept()[0].close()
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (500, "at org.apache.pulsar.common.compression.CompressionCodecZLib.decode", NotShownError),
        (500, f"{'Caused by' * 100} org.apache.pulsar.common.compression.X", NotShownError),
        (500, "LastConfirmedEntry is 8:3 when reading entry 4", pr.AdminError),
        (503, "Service Unavailable", pr.AdminError),
        (403, "no right", pr.AdminForbiddenError),
        (404, "Message not found", pr.AdminNotFoundError),
    ],
)
def test_an_entry_that_the_broker_cannot_show(api, status, reason, error) -> None:
    """It is a chunk that is compressed; every other error is told from that."""
    with Cluster(admin_url=api.url).admin() as admin:
        for ask in (
            lambda: admin.subscriptions.entry("orders", Position(8, 4)),
            lambda: admin.subscriptions.peek("orders", "all"),
        ):
            for _ in range(5 if status == 503 else 1):
                api.answer(status, {"reason": reason})
            with pytest.raises(pr.AdminError) as caught:
                ask()
            assert error is caught.type


@pytest.mark.parametrize("status", [None, 200, 403])
def test_an_entry_without_an_answer(api, monkeypatch, status) -> None:
    """Only if the broker answers another question is the entry one that it cannot show."""
    answers = {None: pr.AdminError, 200: NotShownError, 403: pr.AdminForbiddenError}
    send = Transport.send

    def late(self: Transport, method: str, path: str, *args: Any, **query: Any) -> Any:
        if "/entry/" in path or status is None:
            raise NoAnswerError(None, path, "late")
        return send(self, method, path, *args, **query)

    monkeypatch.setattr(Transport, "send", late)
    api.answer(status or 0, {"reason": "no right"})
    with Cluster(admin_url=api.url).admin() as admin, pytest.raises(answers[status]) as caught:
        admin.subscriptions.entry("orders", Position(8, 4))
    assert (status == 200) == (caught.type is NotShownError)


@pytest.mark.parametrize("status", [404, 503])
def test_an_error_that_is_not_of_pulsar_names_the_url(api, status) -> None:
    """Any web server says so, and its 404 does not mean that a topic is missing."""
    api.answers.append((status, {}, b"<html>oops</html>"))

    with pytest.raises(pr.AdminError, match=rf"x: {api.url} answers: .+ \({status}\)") as caught:
        transport(api).json("POST", "x")
    assert pr.AdminError is type(caught.value)


def test_nobody_listens() -> None:
    """The error names the URL."""
    cluster = Cluster(admin_url="http://127.0.0.1:1", token="secret")

    with pytest.raises(pr.AdminError, match=r"http://127.0.0.1:1 was not reached") as caught:
        Transport(cluster).json("POST", "x")

    assert caught.value.status is None
    assert "secret" not in str(caught.value)


def test_a_token_that_changes_is_read_each_time(api) -> None:
    """Long jobs outlive their first token."""
    tokens = iter(["first", "second"])
    both = transport(api, token=lambda: next(tokens))
    api.answer(200)
    api.answer(200)

    both.json("GET", "x")
    both.json("GET", "x")

    assert ["Bearer first", "Bearer second"] == [each[2] for each in api.asked]


@pytest.mark.parametrize("token", ["secret\u0100", "secret\nX-Injected: 1", "secret\x00"])
def test_what_is_no_token_is_not_sent(api, token) -> None:
    """It fits into no header: an error that does not show it."""
    with pytest.raises(pr.AdminError, match="characters that are not allowed") as caught:
        transport(api, token=token).json("GET", "x")

    assert "secret" not in str(caught.value)
    assert [] == api.asked


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        ("orders", "persistent/public/default/orders/stats"),
        ("a/b/c", "persistent/a/b/c/stats"),
        ("persistent://a/b/c d/é?", "persistent/a/b/c%20d%2F%C3%A9%3F/stats"),
    ],
)
def test_names_are_quoted(topic, path) -> None:
    """Whatever a topic is called, it is one segment."""
    assert path == topic_path(topic, "stats")


@pytest.mark.parametrize("name", [".", "..", "", "x/../../d", "../x"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda admin, name: admin.topics.create(f"persistent://a/b/{name}"),
        lambda admin, name: admin.topics.stats(f"persistent://a/{name}/c"),
        lambda admin, name: admin.topics.stats(f"persistent://{name}/b/c"),
        lambda admin, name: admin.namespaces.topics(f"a/{name}"),
        lambda admin, name: admin.namespaces.topics(f"{name}/b"),
        lambda admin, name: admin.subscriptions.delete("a/b/c", name),
        lambda admin, name: admin.subscriptions.properties("a/b/c", name),
    ],
)
def test_no_name_leads_elsewhere(api, ask, name) -> None:
    """Clients and servers resolve dots: another resource would be asked for, or deleted."""
    with AdminClient(Cluster(admin_url=api.url)) as admin, pytest.raises(ConfigError):
        ask(admin, name)
    assert [] == api.asked
