"""Receivers that were written for Pub/Sub, unchanged."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, request
from prometheus_client import CollectorRegistry
from werkzeug.serving import make_server

import pulsar_retry as pr
from support.reading import SUBSCRIPTION
from support.waiting import eventually


def google_sample() -> tuple[Flask, list[str]]:
    """Return Google's "Cloud Run Pub/Sub" handler: decode the envelope, answer 204."""
    app, names = Flask(__name__), []

    @app.route("/", methods=["POST"])
    def index() -> tuple[str, int]:
        envelope = request.get_json()
        if not envelope:
            return "Bad Request: no Pub/Sub message received", 400
        if not isinstance(envelope, dict) or "message" not in envelope:
            return "Bad Request: invalid Pub/Sub message format", 400
        pubsub_message = envelope["message"]
        name = "World"
        if isinstance(pubsub_message, dict) and "data" in pubsub_message:
            name = base64.b64decode(pubsub_message["data"]).decode("utf-8").strip()
        names.append(name)
        return ("", 204)

    return app, names


@pytest.fixture
def flask() -> Iterator[tuple[str, list[str], Flask]]:
    """Serve the sample; give its URL, what it has received, and the application."""
    app, names = google_sample()
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}/", names, app
    server.shutdown()
    server.server_close()
    thread.join()


def test_googles_flask_sample(client, topic, publish, admin, flask):
    """It receives, and its 204 acknowledges."""
    url, names, _ = flask
    with pr.push.Dispatcher(client, topic, SUBSCRIPTION, url, ack_deadline=600):
        for name in ("Alice", "Bob", "Zoë"):
            publish(name.encode())
        eventually(lambda: sorted(names) == ["Alice", "Bob", "Zoë"])
        eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)


def test_flask_behind_the_verifier(client, topic, publish, admin, flask):
    """It guards an application; a dispatcher that does not sign is refused."""
    url, names, app = flask
    account = pr.push.ServiceAccount("push@example.com", _key())
    verifier = pr.push.Verifier(account.jwks(), audience="my-shop", email="push@example.com")

    @app.before_request
    def verify() -> tuple[str, int] | None:
        try:
            verifier.verify(request.headers)
        except pr.push.VerificationError:
            return "", 401
        return None

    dispatcher = pr.push.Dispatcher(client, topic, SUBSCRIPTION, url, ack_deadline=600)
    sample = pr.register_metrics(CollectorRegistry()).get_sample_value
    labels: dict[str, Any] = {"topic": topic, "subscription": SUBSCRIPTION, "code": "401"}
    with dispatcher:
        publish(b"Alice")
        eventually(lambda: bool(sample("pulsar_retry_push_requests_total", labels)))
    assert [] == names
    form = pr.push.Form(sign=account, audience="my-shop")
    with pr.push.Dispatcher(client, topic, SUBSCRIPTION, url, form=form, ack_deadline=600):
        eventually(lambda: names == ["Alice"])
        eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)


def _key() -> bytes:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
