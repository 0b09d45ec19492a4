"""A push receiver as on Pub/Sub's pages, and the dispatcher that posts to it, in one command.

The receiver does not use Pulsar: it verifies the JWT of each request, decodes Pub/Sub's envelope,
and answers 204. It would do the same behind Flask, FastAPI or Cloud Run. One order is refused at
its first attempt. Another is refused at every attempt, so it ends in the dead-letter topic.
"""

import base64
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"
EMAIL, AUDIENCE = "push@example.com", "shop"

settled = threading.Semaphore(0)


def receive(
    verifier: pr.push.Verifier, environ: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Verify the sender and decode the envelope, as Google's sample does; 204 acknowledges."""
    try:
        claims = verifier.verify({"Authorization": environ.get("HTTP_AUTHORIZATION", "")})
    except pr.push.VerificationError:
        start_response("401 Unauthorized", [])
        return []
    envelope = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    order = base64.b64decode(envelope["message"]["data"]).decode()
    attempt, sender = envelope["deliveryAttempt"], claims["email"]
    if order == "chair" or (order == "lamp" and attempt == 1):
        print(f"attempt {attempt}: no {order} in stock")
        start_response("503 Service Unavailable", [])
        return []
    print(
        f"attempt {attempt}: sold the {order} to {envelope['message']['attributes']['to']}, "
        f"says {sender}"
    )
    settled.release()
    start_response("204 No Content", [])
    return []


class Silent(WSGIRequestHandler):
    """A request handler that writes no log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Write nothing."""


def main() -> None:
    """Serve, dispatch, send three orders, and end when each is settled."""
    account = pr.push.ServiceAccount(EMAIL, new_key())
    verifier = pr.push.Verifier(account.jwks(), audience=AUDIENCE, email=EMAIL)
    server = make_server("127.0.0.1", 0, partial(receive, verifier), handler_class=Silent)
    endpoint = f"http://localhost:{server.server_port}/push"
    serving = threading.Thread(target=server.serve_forever)
    serving.start()

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(URL, logger=logger) as client:
        producer = client.create_producer(TOPIC)
        for order in ("tea", "chair", "lamp"):
            producer.send(order.encode(), properties={"to": "alice"})
        with pr.push.Dispatcher(
            client,
            TOPIC,
            "shop",
            endpoint,
            form=pr.push.Form(sign=account, audience=AUDIENCE),
            retry_policy=pr.RetryPolicy(backoff=pr.Fixed(0.2)),
            dead_letter_policy=pr.DeadLetterPolicy(max_redeliver_count=2),
        ) as dispatcher:
            for _ in range(2):
                settled.acquire()
            dead_letter_topic = pr.Naming.PULSAR.topics(TOPIC, "shop").dead_letter
            (delivery,) = client.pull(dead_letter_topic, "pulsar-retry", timeout=30)
            letter = pr.DeadLetter.of(delivery.message)
            print(f"dead: {delivery.message.data().decode()}, {letter.failure.reason}")
            delivery.ack()
        report = dispatcher.result()
        print(f"{report.acknowledged} sold, {report.retried} retried, {report.dead_lettered} dead")
    server.shutdown()
    server.server_close()
    serving.join()


def new_key() -> bytes:
    """Return a new key for this run; in production, load one with `ServiceAccount.from_file`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


if __name__ == "__main__":
    main()
