"""`pulsar-retry push serve` as a process: it starts, is asked, is ended and is killed."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_retry.push import VerificationError, Verifier
from support.push.receiving import SOON, Receiver, Request, Say, answer, no_content
from support.reading import SUBSCRIPTION
from support.waiting import eventually

PROGRAM = (sys.executable, "-m", "pulsar_retry")


class Served:
    """A dispatcher's process.

    Attributes:
        ready: What it has said when it was ready.
        process: The process.
    """

    def __init__(self, service_url: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "push", "serve", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PULSAR_SERVICE_URL": service_url},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.ready: dict[str, Any] = json.loads(line)["ready"]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, dict[str, Any], str]:
        """End it; return its exit code, its report and what it has written to standard error."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=240)
        return self.process.returncode, json.loads(out)["report"], err

    def ask(self, path: str) -> tuple[int, bytes]:
        """GET a page of its server."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.ready["listen"] + path, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


Serve = Callable[..., Served]


@pytest.fixture
def serve(broker: Any, topic: str, receiver: Receiver) -> Iterator[Serve]:
    """Return a function that starts a process; it is killed at the end."""
    started = []

    def serve(*arguments: str, endpoint: str | None = receiver.url) -> Served:
        # On a busy machine an answer may take longer than usual deadlines.
        names = ["--topic", topic, "--subscription", SUBSCRIPTION]
        names += ["--ack-deadline", "120"]
        if endpoint is not None:
            names += ["--endpoint", endpoint]
        served = Served(broker.service_url, *names, *arguments)
        started.append(served)
        return served

    yield serve
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_drains_and_exits_with_0(serve, publish, receiver, admin, topic, number):
    """What was sent is answered, nothing more is sent, and a second SIGTERM changes nothing."""
    release = threading.Event()

    def act(request: Request) -> Say:
        release.wait(SOON)
        return no_content(request)

    receiver.act = act
    for _ in range(20):
        publish(b"tea")
    served = serve()
    receiver.wait_for(4)
    served.process.send_signal(number)
    eventually(lambda: served.ask("/readyz")[0] == 503)
    served.process.send_signal(signal.SIGTERM)
    threading.Timer(0.5, release.set).start()
    code, report, errors = served.end()
    assert (0, 4, 0) == (code, report["acknowledged"], report["abandoned"])
    assert all("SIGTERM" in line for line in errors.splitlines())
    assert 4 == len(receiver.requests)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 16)


def test_killed_after_answers(serve, publish, receiver, admin, topic):
    """What was answered, and acknowledged at the broker, is not posted again; nothing is lost."""
    answered = {b"%d" % number for number in range(40)}

    def act(request: Request) -> Say:
        known = base64.b64decode(request.data()) in answered
        return no_content(request) if known else Say(b"", "hang")

    receiver.act = act
    served = serve()
    for number in range(50):
        publish(b"%d" % number)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 10)
    served.process.kill()
    served.process.wait()
    before = len(receiver.requests)
    receiver.act = no_content
    serve()
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
    again = {base64.b64decode(request.data()) for request in receiver.requests[before:]}
    assert {b"%d" % number for number in range(40, 50)} == again


def test_health_and_metrics(serve, publish, receiver):
    """They are for everyone on this machine."""
    served = serve()
    publish(b"tea")
    receiver.wait_for(1)
    status, body = served.ask("/livez")
    assert (200, True) == (status, json.loads(body)["live"])
    eventually(lambda: b'requests_total{code="204"' in served.ask("/metrics")[1])
    assert 200 == served.ask("/readyz")[0]
    assert 404 == served.ask("/.well-known/jwks.json")[0]


def test_an_address_in_use(serve):
    """The error names the address, and nothing is posted."""
    address = serve().ready["listen"].removeprefix("http://")
    with pytest.raises(AssertionError, match="cannot listen on 127") as refused:
        serve("--listen", address)
    assert address.partition(":")[2] in str(refused.value)


@pytest.mark.parametrize(
    ("status", "said"), [(400, "answered 400"), (None, "connectionrefusederror")]
)
def test_failures_are_said(serve, publish, receiver, status, said):
    """On standard error, by one line a minute at most, however often they happen."""
    if status is None:
        with Receiver() as gone:
            served = serve(endpoint=gone.url)
    else:
        receiver.act = lambda _request: answer(status)
        served = serve()
    began = time.monotonic()
    publish(b"tea")

    def failures() -> float:
        lines = served.ask("/metrics")[1].decode().splitlines()
        counts = (line.split()[-1] for line in lines if "push_nacked_total{" in line)
        return sum(map(float, counts))

    eventually(lambda: failures() >= 3)
    errors = served.end()[2].splitlines()
    assert 1 <= len(errors) <= 1 + (time.monotonic() - began) // 60, errors
    assert all(said in each.lower() for each in errors)


def key_file(folder: Path, key_id: str = "one") -> Path:
    """Write a service account's key file, as Google's."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()).decode()
    path = folder / f"{key_id}.json"
    content = {
        "type": "service_account",
        "client_email": "push@example.com",
        "client_id": "113774264463038321964",
        "private_key": pem,
        "private_key_id": key_id,
    }
    path.write_text(json.dumps(content))
    return path


def test_signed(serve, publish, receiver, tmp_path):
    """A receiver verifies with the keys that are served; one token serves several requests."""
    files = [str(key_file(tmp_path, key_id)) for key_id in ("one", "next")]
    served = serve(*(word for each in files for word in ("--service-account", each)))
    for number in range(3):
        publish(b"%d" % number)
    receiver.wait_for(3)
    tokens = {request.headers["Authorization"] for request in receiver.requests}
    assert 1 == len(tokens)
    keys = served.ready["listen"] + "/.well-known/jwks.json"
    assert ["one", "next"] == [
        each["kid"] for each in json.loads(served.ask("/.well-known/jwks.json")[1])["keys"]
    ]
    verifier = Verifier(keys, audience=receiver.url, email="push@example.com")
    claims = verifier.verify(dict(receiver.requests[0].headers))
    assert ("https://accounts.google.com", "113774264463038321964", True) == (
        claims["iss"],
        claims["azp"],
        claims["email_verified"],
    )
    with pytest.raises(VerificationError):
        Verifier(keys, audience="https://x", email="push@example.com").verify(
            dict(receiver.requests[0].headers)
        )


def test_dead_letters_for_others(serve, publish, receiver, dead_letters):
    """The options that no policy has reach the letters, too."""
    receiver.act = lambda _request: answer(500)
    policy = ("--max-delivery-attempts", "5", "--pubsub-attributes")
    serve(*policy, "--no-breaker", "--max-rate", "50")
    publish(b"tea")
    (letter,) = dead_letters(1)
    assert "5" == letter.properties()["CloudPubSubDeadLetterSourceDeliveryCount"]


def test_secrets_are_not_shown(serve, publish, receiver, tmp_path, monkeypatch):
    """Neither the endpoint's query nor a key, whatever goes wrong; nor to who lists processes."""
    monkeypatch.setenv("PULSAR_PUSH_ENDPOINT", f"{receiver.url}/hidden?token=hidden")
    path = key_file(tmp_path)
    receiver.act = lambda _request: answer(500)
    served = serve("--service-account", str(path), endpoint=None)
    publish(b"tea")
    receiver.wait_for(3)
    assert "/hidden?token=hidden" in receiver.requests[0].line
    said = json.dumps(served.ready) + served.ask("/metrics")[1].decode()
    said += Path(f"/proc/{served.process.pid}/cmdline").read_text()
    said += served.ask("/livez")[1].decode()
    token = receiver.requests[0].headers["Authorization"].split()[1]
    code, report, errors = served.end()
    said += json.dumps(report) + errors
    assert 0 == code
    for hidden in ("hidden", token, "PRIVATE"):
        assert hidden not in said
