"""A broker that restarts while messages are pushed."""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from contextlib import suppress
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.push import pacing
from pulsar_retry.replay import Cluster, Redrive
from support.push.receiving import Receiver, Request, Say, answer, no_content
from support.reading import SUBSCRIPTION, dead_letter_topic, is_settled
from support.stored import stored
from support.waiting import eventually

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def broker(own_broker: Any) -> Any:
    """Let `admin` use the broker that restarts."""
    return own_broker


def test_dead_letters_of_a_broker_that_restarts(own_broker, admin, monkeypatch):
    """What is refused for good is dead-lettered, and delivered after a redrive; all is counted."""
    monkeypatch.setattr(pacing, "SHORTEST", 0.005)  # the refused ones alone would take minutes
    monkeypatch.setattr(pacing, "_MAX_LEVEL", 1)
    topic, count = f"persistent://public/default/{uuid.uuid4().hex}", 300
    refused = {b"%d" % number for number in range(0, count, 10)}
    attempts, delivered = Counter[bytes](), Counter[bytes]()
    is_mended = False

    def act(request: Request) -> Say:
        payload = base64.b64decode(request.data())
        if payload in refused and not is_mended:
            attempts[payload] += 1
            return answer(422)
        delivered[payload] += 1
        return no_content(request)

    options = {
        "retry_policy": pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(0.2)),
        "dead_letter_policy": pr.DeadLetterPolicy(2),
    }
    client = pr.Client(
        own_broker.service_url,
        operation_timeout_seconds=90,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    with client, Receiver(act) as receiver:
        producer = client.create_producer(topic, max_pending_messages=0, send_timeout_millis=0)
        for number in range(count):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        with pr.push.Dispatcher(client, topic, SUBSCRIPTION, receiver.url, **options) as dispatcher:
            eventually(lambda: len(attempts) > len(refused) // 2)
            own_broker.restart()

            def all_settled() -> bool:
                with suppress(OSError):  # the REST API is not ready
                    return is_settled(admin, topic)
                return False

            eventually(all_settled)
        assert {b"%d" % number for number in range(count)} - refused == set(delivered)
        assert min(attempts.values()) >= 3
        letters = stored(own_broker.service_url, dead_letter_topic(topic))
        assert refused == {each.data() for each in letters}
        # A letter whose receipt was lost is there twice.
        assert len(refused) <= dispatcher.result().dead_lettered <= len(letters)

        is_mended = True
        with pr.push.Dispatcher(client, topic, SUBSCRIPTION, receiver.url, **options):
            cluster = Cluster(own_broker.service_url, admin_url=own_broker.admin_url)
            done = Redrive(dead_letter_topic(topic), cluster=cluster).run()
            assert (len(letters), {}) == (done.redriven, done.left)
            eventually(lambda: len(delivered) == count)
        assert 0 == Redrive(dead_letter_topic(topic), cluster=cluster).run().redriven
