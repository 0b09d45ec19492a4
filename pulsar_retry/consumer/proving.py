"""Publishing the first letter of a longer delay through a connection of its own.

A namespace may limit delays (``maxDeliveryDelayInMillis``), and clients are not told. A broker that
refuses a letter closes the connection; pulsar-client connects again and sends the letter again,
some ten times a second and without an end. Meanwhile whatever shares the connection is redelivered
or sent twice. So a delay that is longer than all that the topic has taken so far is tried where
nothing else can be hurt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.exiting import keep_until_exit
from pulsar_retry.consumer.results import error_of

_log = logging.getLogger("pulsar_retry")

#: Seconds between two looks at the connections.
_LOOK = 0.05

#: So many looks have to find the letter's own connection closed while that of the other letters is
#: open. pulsar-client connects anew every 0.1 s, and is refused at once.
_CLOSED = 8


class RefusedDelayError(Exception):
    """The broker closes the connection when it gets a letter of this delay."""


def publish_alone(
    new_client: Callable[[], pulsar.Client],
    topic: str,
    options: dict[str, Any],
    build: Callable[[], Any],
    *,
    is_reachable: Callable[[], bool],
    timeout: float,
) -> None:
    """Publish a message by a client of its own, and wait for its receipt.

    Args:
        new_client: Makes the client.
        topic: The topic.
        options: Those of the producer.
        build: Returns the raw message.
        is_reachable: Tells whether others are connected to the topic.
        timeout: Seconds to wait at most.

    Raises:
        RefusedDelayError: the broker refuses it.
        pulsar.PulsarException: it was not published in time, or for another reason.
    """
    client = new_client()
    try:
        producer = client.create_producer(topic, **options)._producer  # noqa: SLF001
        answers: list[_pulsar.Result] = []
        answered = threading.Event()

        def answer(result: _pulsar.Result, _message_id: Any) -> None:
            answers.append(result)
            answered.set()

        producer.send_async(build(), answer)
        deadline = time.monotonic() + timeout
        closed = 0
        while not answered.wait(_LOOK):
            if time.monotonic() >= deadline:
                raise error_of(_pulsar.Result.Timeout)
            closed += not producer.is_connected() and is_reachable()
            if closed >= _CLOSED:
                raise RefusedDelayError
        if answers[0] != _pulsar.Result.Ok:
            raise error_of(answers[0])
    finally:
        keep_until_exit(client._client)  # noqa: SLF001
        # `shutdown` would hold the interpreter's lock while it waits for threads that need it.
        try:
            client.close()
        except pulsar.PulsarException:
            _log.warning(
                "the connection of its own of a letter to %s was not closed", topic, exc_info=True
            )
