"""Handles the messages of a topic, and enters each in a ledger: how often does which client?

``python worker.py pulsar.Client|pr.Client|pr.Client.subscriber``. A line of JSON in begins
(``{"do": "work", "url": …, "topic": …}``) or ends (``{"do": "rest"}``); a line of JSON out says
that it is done.
Worker.java does the same with the Java client.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar

import pulsar_retry as pr

sys.path.append(str(Path(__file__).parents[1]))

from support.faults.ledger import Ledger, number_of

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class Retry(Exception):  # noqa: N818 - it says what is to be done
    """What a handler raises whose message is to come back."""


class Worker:
    """A client, its consumers and their threads."""

    def __init__(self, kind: str, order: dict[str, Any]) -> None:
        self._order = order
        self._ledger = Ledger(order["ledger"])
        self._resting = threading.Event()
        self._threads: list[threading.Thread] = []
        make = pulsar.Client if kind == "pulsar.Client" else pr.Client
        # The first topic of a namespace takes a busy broker long.
        self._client = make(order["url"], operation_timeout_seconds=90, logger=QUIET)
        {
            "pulsar.Client": self._bare,
            "pr.Client": self._ours,
            "pr.Client.subscriber": self._managed,
        }[kind]()

    def rest(self) -> None:
        """End."""
        self._resting.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _handle(self, message: Any) -> None:
        number = self._ledger.enter("delivered", number_of(message))
        time.sleep(self._order["work_ms"] / 1000)
        if number % self._order["fails"] == 0 and "RECONSUMETIMES" not in message.properties():
            raise Retry
        self._ledger.enter("processed", number)

    def _subscribe(self, topic: str, **options: Any) -> Any:
        return self._client.subscribe(
            topic,
            self._order["subscription"],
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=self._order["queue"],
            **options,
        )

    def _begin(self, consumer: Any, retry: Callable[[Any], object], threads: int) -> None:
        def work() -> None:
            while not self._resting.is_set():
                with suppress(pulsar.Timeout):
                    message = consumer.receive(200)
                    try:
                        self._handle(message)
                        consumer.acknowledge(message)
                    except Retry:
                        retry(message)

        self._threads += [threading.Thread(target=work) for _ in range(threads)]
        for thread in self._threads[-threads:]:
            thread.start()

    def _ours(self) -> None:
        """By `pr.Client.subscribe`."""
        consumer = self._subscribe(self._order["topic"], enable_retry=True)
        delay = self._order["delay_ms"] / 1000

        def retry(message: Any) -> None:
            with suppress(pr.LetterPublishError, pr.AcknowledgeError):  # it comes again
                consumer.reconsume_later(message, delay=delay)

        self._begin(consumer, retry, self._order["threads"])

    def _managed(self) -> None:
        """By `pr.Client.subscriber`."""
        policy = pr.RetryPolicy(
            max_attempts=16, backoff=pr.Fixed(self._order["delay_ms"] / 1000), retry_on=(Retry,)
        )
        self._client.subscriber(
            self._order["topic"],
            self._order["subscription"],
            self._handle,
            retry_policy=policy,
            concurrency=self._order["threads"],
            prefetch=self._order["queue"],
        ).start()

    def _bare(self) -> None:
        """By what an application would write by hand."""
        topic = f"{self._order['topic']}-{self._order['subscription']}-RETRY"
        producer = self._client.create_producer(topic, batching_enabled=False)
        delay = timedelta(milliseconds=self._order["delay_ms"])
        for each, threads in ((self._order["topic"], self._order["threads"]), (topic, 1)):
            consumer = self._subscribe(each)

            def retry(message: Any, consumer: Any = consumer) -> None:
                with suppress(pulsar.PulsarException):  # it comes again
                    producer.send(message.data(), {"RECONSUMETIMES": "1"}, deliver_after=delay)
                    consumer.acknowledge(message)

            self._begin(consumer, retry, threads)


def main(kind: str) -> None:
    """Take orders from the standard input until it ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed is no answer
    worker = None
    for line in sys.stdin:
        answer: dict[str, Any] = {"is": None}
        try:
            order = json.loads(line)
            if order["do"] == "work":
                worker = Worker(kind, order)
            elif worker is not None:
                worker.rest()
        except Exception as error:
            traceback.print_exc()
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
