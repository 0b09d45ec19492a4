"""Python in a race: what a message costs, from the first one received to the last one settled.

``python race.py bare|ours|python URL``; ``python`` is ours with the hand-off in Python. A line of
JSON in is a race, ``{"do": …, "topic": …}``; a line of JSON out is its time, ``{"is": seconds}``,
or ``{"error": …}``.
The topic is filled before, and each race subscribes.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import pulsar

import pulsar_retry as pr

PATIENCE = 60_000


class Letters(Protocol):
    """A way to hand messages on."""

    def send(self, message: pulsar.Message) -> None:
        """Hand on; return when the letter is written."""

    def send_async(self, message: pulsar.Message) -> None:
        """Hand on; wait only for a place in the flight."""

    def wait(self) -> None:
        """Return when everything is settled."""


class Ours:
    """`pr.Client`."""

    def __init__(self, url: str) -> None:
        self._client = pr.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    @contextmanager
    def entered(self, order: dict[str, Any]) -> Iterator[tuple[pulsar.Consumer, Letters]]:
        """Subscribe for a race."""
        consumer = self._client.subscribe(
            order["topic"],
            "race",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            enable_retry=True,
            max_pending_letters=order["in_flight"],
        )
        yield consumer, OurLetters(consumer, order["delay_ms"] / 1000, order["in_flight"])
        consumer.close()


class OurLetters:
    """By `reconsume_later`."""

    def __init__(self, consumer: pr.Consumer, delay: float, in_flight: int) -> None:
        self._consumer = consumer
        self._delay = delay
        self._in_flight = in_flight
        self._futures: deque[Any] = deque()

    def send(self, message: pulsar.Message) -> None:
        self._consumer.reconsume_later(message, delay=self._delay)

    def send_async(self, message: pulsar.Message) -> None:
        self._futures.append(self._consumer.reconsume_later_async(message, delay=self._delay))
        if len(self._futures) > 2 * self._in_flight:
            self._futures.popleft().result(60)

    def wait(self) -> None:
        for future in self._futures:
            future.result(60)


class Bare:
    """`pulsar.Client`, with what an application would write by hand."""

    def __init__(self, url: str) -> None:
        self._client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    @contextmanager
    def entered(self, order: dict[str, Any]) -> Iterator[tuple[pulsar.Consumer, Letters]]:
        """Subscribe for a race."""
        topic = order["topic"]
        consumer = self._client.subscribe(
            topic if order["do"] == "acknowledge" else [topic, f"{topic}-RETRY"],
            "race",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        producer = self._client.create_producer(
            f"{topic}-RETRY",
            batching_enabled=False,
            block_if_queue_full=True,
            max_pending_messages=order["in_flight"],
        )
        yield consumer, BareLetters(consumer, producer, order["delay_ms"])
        producer.close()
        consumer.close()


class BareLetters:
    """By a producer."""

    def __init__(self, consumer: pulsar.Consumer, producer: pulsar.Producer, delay: int) -> None:
        self._consumer = consumer
        self._producer = producer
        self._options = {
            "properties": {"RECONSUMETIMES": "1"},
            "deliver_after": timedelta(milliseconds=delay),
        }

    def send(self, message: pulsar.Message) -> None:
        self._producer.send(message.data(), **self._options)
        self._consumer.acknowledge(message)

    def send_async(self, message: pulsar.Message) -> None:
        def acknowledge(result: Any, _message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                self._consumer.acknowledge(message)

        self._producer.send_async(message.data(), acknowledge, **self._options)

    def wait(self) -> None:
        self._producer.flush()


def run(side: Ours | Bare, order: dict[str, Any]) -> float:
    """Run a race; return its seconds."""
    with side.entered(order) as (consumer, letters):
        message = consumer.receive(PATIENCE)
        began = time.perf_counter()
        settle = _settler(order["do"], consumer, letters)
        left = order["messages"] - settle(message)
        while left:
            left -= settle(consumer.receive(PATIENCE))
        letters.wait()
        return time.perf_counter() - began


def _settler(kind: str, consumer: pulsar.Consumer, letters: Letters) -> Callable[[Any], int]:
    """Return what is done with a message; it returns how many are done with that."""

    def acknowledge(message: pulsar.Message) -> int:
        consumer.acknowledge(message)
        return 1

    def reconsume(message: pulsar.Message) -> int:
        letters.send(message)
        return 1

    def pipeline(message: pulsar.Message) -> int:
        letters.send_async(message)
        return 1

    def loop(message: pulsar.Message) -> int:
        if "RECONSUMETIMES" in message.properties():
            return acknowledge(message)
        letters.send_async(message)
        return 0

    return {
        "acknowledge": acknowledge,
        "reconsume": reconsume,
        "pipeline": pipeline,
        "loop": loop,
    }[kind]


def main(kind: str, url: str) -> None:
    """Take orders from the standard input until it ends."""
    if kind == "python":
        os.environ["PULSAR_RETRY_NATIVE"] = "0"
    side = Bare(url) if kind == "bare" else Ours(url)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"is": run(side, json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
