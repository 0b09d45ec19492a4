"""A broker that restarts while messages are pushed."""

from __future__ import annotations

import base64
import uuid

import pulsar
import pytest

import pulsar_retry as pr
from support.push.receiving import Receiver
from support.reading import SUBSCRIPTION, eventually

pytestmark = pytest.mark.timeout(200)


def test_the_broker_restarts(own_broker):
    """Afterwards everything has arrived, and what is published then arrives, too."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    client = pr.Client(own_broker.service_url, logger=logger)
    with client, Receiver() as receiver:
        producer = client.create_producer(topic, send_timeout_millis=0)
        for number in range(200):
            producer.send(b"%d" % number)
        with pr.push.Dispatcher(client, topic, SUBSCRIPTION, receiver.url):
            receiver.wait_for(20)
            own_broker.restart()
            for number in range(200, 220):
                producer.send(b"%d" % number)

            def arrived() -> set[bytes]:
                return {base64.b64decode(request.data()) for request in list(receiver.requests)}

            eventually(lambda: arrived() == {b"%d" % number for number in range(220)}, 90)
