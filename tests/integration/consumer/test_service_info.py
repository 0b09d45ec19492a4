"""A client that its provider of service information moves to another address."""

from __future__ import annotations

from typing import Any

import pulsar

import pulsar_retry as pr
from support.reading import FROM_START, SOON, SUBSCRIPTION


def attempts(message: pulsar.Message) -> int:
    """Return how many letters a message has had."""
    return pr.RetryProperties.of(message).reconsume_times


def test_messages_and_letters_go_on_at_the_new_address(broker, proxy, topic, publish):
    """The old address is dead by then, as after the loss of a cluster."""

    class Provider(pulsar.ServiceInfoProvider):
        move: Any

        def initial_service_info(self) -> Any:
            return pulsar.ServiceInfo(proxy.url)

        def initialize(self, on_service_info_update: Any) -> None:
            self.move = on_service_info_update

    provider = Provider()
    with pr.Client(provider) as client:
        consumer = client.subscribe(topic, SUBSCRIPTION, **FROM_START, enable_retry=True)
        for payload in (b"before", b"after"):
            publish(payload)
            while (message := consumer.receive(SOON)).data() != payload or attempts(message) == 0:
                consumer.reconsume_later(message, delay=0)
            consumer.acknowledge(message)
            if payload == b"before":
                proxy.cut(refuse=True)
                provider.move(pulsar.ServiceInfo(broker.service_url))
