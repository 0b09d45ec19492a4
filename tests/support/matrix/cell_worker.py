"""A program that works on one cell of the matrix until it is killed, and records what it does.

Its argument is JSON: the cell, the broker, the topics, and the file. Each run of the handler is a
line ``run NAME`` of the file, each redelivery of the neighbour's message a line ``neighbour``. The
property ``name`` of a message says what happens to it: ``poison…`` always fails, ``once…`` fails
the first time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pulsar
from pulsar.schema import AvroSchema

import pulsar_retry as pr
import pulsar_retry.asyncio as pra

sys.path.append(str(Path(__file__).parents[2]))  # the file is started as a program

from support.matrix.cells import Cell

SUBSCRIPTION = "billing"

#: Retries after the first attempt.
RETRIES = 2

#: Seconds until a retry.
DELAY = 1.0

KEY = "matrix"


def schema(*, evolved: bool) -> Any:
    """Return the schema of orders: the writers' one, or the readers' *evolved* one."""
    note = [{"name": "note", "type": "string", "default": "-"}] if evolved else []
    fields = [*note, {"name": "item", "type": "string"}]
    return AvroSchema(None, schema_definition={"type": "record", "name": "Order", "fields": fields})


class Work:
    """The handler of all shells, and its ledger."""

    def __init__(self, cell: Cell, path: Path) -> None:
        self.cell = cell
        self._file = path.open("a+", buffering=1, encoding="utf-8")
        self._file.seek(0)
        lines = self._file.read().splitlines()  # written by the killed process
        self._runs = Counter(line[4:] for line in lines if line.startswith("run "))
        self._lock = threading.Lock()

    def note(self, line: str) -> None:
        """Write a line to the file."""
        with self._lock:
            self._file.write(f"{line}\n")

    def fails(self, name: str) -> bool:
        """Record a run, and return whether it fails."""
        self.note(f"run {name}")
        with self._lock:
            self._runs[name] += 1
            first = self._runs[name] == 1
        return name.startswith("poison") or (name.startswith("once") and first)

    def handle(self, message: Any) -> None:
        """Handle a message, which may fail; a subscriber calls this."""
        if self.cell.form == "avro":
            assert message.value()["note"] == "-"
        if self.fails(message.properties()["name"]):
            raise TimeoutError("not now")

    def is_dead(self, message: Any) -> bool:
        """Return whether the application has to dead-letter a message itself.

        On Exclusive and Failover subscriptions, the broker does not count redeliveries.
        """
        if self.cell.kind not in {"Exclusive", "Failover"}:
            return False
        return self._runs[message.properties()["name"]] > RETRIES


def options_of(cell: Cell, keys: list[str]) -> dict[str, Any]:
    """Return the arguments of `subscribe`."""
    kind = "KeyShared" if cell.kind == "sticky" else cell.kind
    options: dict[str, Any] = {
        "consumer_type": getattr(pulsar.ConsumerType, kind),
        "initial_position": pulsar.InitialPosition.Earliest,
        "enable_retry": cell.by_letters,
        "dead_letter_policy": pr.DeadLetterPolicy(RETRIES),
        "receiver_queue_size": 100,
    }
    if cell.kind == "sticky":
        options["key_shared_policy"] = pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 65535)]
        )
    if cell.form == "avro":
        options["schema"] = schema(evolved=True)
    if cell.form == "encrypted":
        options["crypto_key_reader"] = pulsar.CryptoKeyReader(*keys)
        options["letter_encryption_key"] = KEY
    return options


def settle(consumer: Any, message: Any, work: Work) -> None:
    """Handle and settle a message, as applications do."""
    try:
        try:
            work.handle(message)
        except TimeoutError as error:
            if work.cell.by_letters:
                consumer.reconsume_later(message, delay=DELAY)
            elif work.is_dead(message):
                consumer.dead_letter(message, error=error)
            else:
                consumer.negative_acknowledge(message, delay=DELAY)
        else:
            consumer.acknowledge(message)
    except pr.SettleError as error:
        work.note(f"unsettled {error}".replace("\n", " "))


def run_sync(client: pr.Client, topic: Any, work: Work, options: dict[str, Any]) -> None:
    """Receive and settle in a loop."""
    consumer = client.subscribe(topic, SUBSCRIPTION, **options)
    while True:
        settle(consumer, consumer.receive(), work)


def run_listener(client: pr.Client, topic: Any, work: Work, options: dict[str, Any]) -> None:
    """Settle in a message listener."""
    client.subscribe(
        topic,
        SUBSCRIPTION,
        message_listener=lambda consumer, message: settle(consumer, message, work),
        **options,
    )
    threading.Event().wait()


async def run_asyncio(url: str, topic: Any, work: Work, options: dict[str, Any]) -> None:
    """Receive and settle on an event loop."""
    async with pra.Client(url, operation_timeout_seconds=90) as client:
        consumer = await client.subscribe(topic, SUBSCRIPTION, **options)
        while True:
            message = await consumer.receive()
            try:
                try:
                    work.handle(message)
                except TimeoutError as error:
                    if work.cell.by_letters:
                        await consumer.reconsume_later(message, delay=DELAY)
                    elif work.is_dead(message):
                        await consumer.dead_letter(message, error=error)
                    else:
                        await consumer.negative_acknowledge(message, delay=DELAY)
                else:
                    await consumer.acknowledge(message)
            except pr.SettleError as error:
                work.note(f"unsettled {error}".replace("\n", " "))


def managed(cell: Cell) -> dict[str, Any]:
    """Return the arguments that a subscriber and a dispatcher share.

    All first attempts fail here, which would open the breaker.
    """
    return {
        "breaker": None,
        "retry_policy": pr.RetryPolicy(max_attempts=RETRIES + 1, backoff=pr.Fixed(DELAY)),
        "consumer_type": getattr(pulsar.ConsumerType, cell.kind),
        "redelivery": "nack" if cell.fault == "nack" else "letters",
    }


def run_subscriber(client: pr.Client, topic: Any, work: Work, _: dict[str, Any]) -> None:
    """Settle with a subscriber."""
    more = {"schema": schema(evolved=True)} if work.cell.form == "avro" else {}
    client.subscriber(
        topic, SUBSCRIPTION, work.handle, concurrency=4, **managed(work.cell), **more
    ).run()


def run_push(client: pr.Client, topic: Any, work: Work, _: dict[str, Any]) -> None:
    """Settle with a dispatcher that posts to an endpoint of this process."""

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["message"]
            base64.b64decode(body.get("data", ""))
            fails = work.fails(body["attributes"]["name"])
            self.send_response(503 if fails else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    pr.push.Dispatcher(client, topic, SUBSCRIPTION, url, **managed(work.cell)).run()


RUNS = {"sync": run_sync, "listener": run_listener, "subscriber": run_subscriber, "push": run_push}


def watch_neighbour(client: pr.Client, topic: str, work: Work) -> None:
    """Hold a message of another consumer of this client, and record any redelivery of it."""
    consumer = client.subscribe(topic, "neighbour", pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"held")
    held = consumer.receive()
    work.note(f"holds {held.message_id()}")

    def watch() -> None:
        while True:
            consumer.receive()
            work.note("neighbour")

    threading.Thread(target=watch, daemon=True).start()


def main(argument: str) -> None:
    """Work until the process is killed."""
    logging.basicConfig(level=logging.WARNING)
    job = json.loads(argument)
    cell = Cell(**job["cell"])
    work = Work(cell, Path(job["path"]))
    topic = re.compile(job["topic"]) if cell.topics == "pattern" else job["topic"]
    client = pr.Client(
        job["url"],
        operation_timeout_seconds=90,  # what a busy broker needs, else this program would end
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    watch_neighbour(client, job["neighbour"], work)
    options = options_of(cell, job["keys"])
    if cell.shell == "asyncio":
        asyncio.run(run_asyncio(job["url"], topic, work, options))
    else:
        RUNS[cell.shell](client, topic, work, options)


if __name__ == "__main__":
    main(sys.argv[1])
