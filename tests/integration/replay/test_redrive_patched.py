"""Dead letters that are patched on their way: what arrives, and what a kill leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pulsar
import pytest
from pulsar.schema import JsonSchema, Long, Record, String

from support.reading import SOON
from support.replay.redriving import Dead, received
from support.waiting import eventually

#: Done twice, it would show.
FIX = {"to": [1]}


class Order(Record):
    """A record of an application."""

    number = Long()
    city = String()


def fill(dead: Dead, count: int, **options: Any) -> None:
    """Publish dead letters, whose payloads are JSON with their numbers."""
    dead._ensure()
    producer: Any = dead.client.create_producer(dead.dlq, max_pending_messages=0, **options)
    for number in range(count):
        payload = f'{{"number": {number}, "city": "Zoë", "to": []}}'.encode()
        producer.send_async(
            payload, None, properties=dead.properties(number), partition_key=f"k{number}"
        )
    producer.flush()
    producer.close()


def test_a_letter_with_a_schema(dead) -> None:
    """JSON is patched, and keeps its schema; a record of another schema stays."""
    consumer = dead.subscribe(schema=JsonSchema(Order))
    dead._ensure()
    producer = dead.client.create_producer(dead.dlq, schema=JsonSchema(Order))
    producer.send(Order(number=1, city="Zoë"), properties=dead.properties(1))
    done = dead.redrive(patch={"number": 1001}).run()
    assert (1, 1, {}) == (done.redriven, done.patched, done.left)
    (message,) = received(consumer, 1)
    assert (1001, "Zoë") == (message.value().number, message.value().city)


@pytest.mark.parametrize(
    "options",
    [
        {"batching_enabled": True, "batching_max_publish_delay_ms": 200},
        {"compression_type": pulsar.CompressionType.ZSTD},
        {"partitions": 3},
    ],
    ids=["batched", "compressed", "partitioned"],
)
def test_letters_of_every_form(dead, options) -> None:
    """Each is patched once, and arrives with its key."""
    consumer = dead.subscribe()
    dead.create("keep", partitions=options.pop("partitions", 0))
    fill(dead, 20, **options)

    done = dead.redrive(patch=FIX).run()

    assert (20, 20) == (done.redriven, done.patched)
    found = {json.loads(each.data())["number"]: each for each in received(consumer, 20)}
    assert set(range(20)) == set(found)
    assert all([1] == json.loads(each.data())["to"] for each in found.values())
    assert all(f"k{number}" == each.partition_key() for number, each in found.items())
    eventually(lambda: dead.backlog() == 0)


def test_a_letter_in_chunks(dead) -> None:
    """The copy is as large as it needs to be."""
    consumer = dead.subscribe()
    text = "x" * (6 << 20)
    dead.send(json.dumps({"number": 1, "text": text}).encode(), dead.properties(1))
    done = dead.redrive(patch={"number": 2}).run()
    assert (1, 1) == (done.redriven, done.patched)
    (message,) = received(consumer, 1)
    assert {"number": 2, "text": text} == json.loads(message.data())


#: Redrives with a patch, and is killed at a step of the letter with a number.
PROGRAM = """
import json, os, signal, sys
from pulsar_retry.consumer.handoff.sending import Flight
from pulsar_retry.replay import Cluster, Redrive
from pulsar_retry.replay.redriving import run
url, admin, source, patch, step = sys.argv[1:]
run.IN_FLIGHT = 20
seen = {}

def at(what, number=30):
    seen[what] = seen.get(what, 0) + 1
    if what == step and seen[what] == number:
        os.kill(os.getpid(), signal.SIGKILL)

def before(kind, name, what):
    whole = getattr(kind, name)
    def patched(self, given, *more, **named):
        what(self, given)
        return whole(self, given, *more, **named)
    setattr(kind, name, patched)

before(Flight, "has_receipt", lambda *_: at("copy has a receipt"))
before(run.Run, "item_done", lambda *_: at("acknowledged"))
before(run.Run, "_send", lambda *_: at("before all"))
redrive = Redrive(source, cluster=Cluster(url, admin_url=admin), patch=patch)
done = redrive.run()
print(json.dumps([done.redriven, done.is_complete]))
"""
STEPS = ["before all", "copy has a receipt", "acknowledged"]


def test_a_kill_at_every_step(dead) -> None:
    """Nothing is lost, and nothing is patched twice."""
    consumer = dead.subscribe()
    count = 400
    fill(dead, count, batching_enabled=False)
    urls = (dead.broker.service_url, dead.broker.admin_url)
    command = [sys.executable, "-c", PROGRAM, *urls, dead.dlq, json.dumps(FIX)]
    for step in STEPS:
        assert -9 == subprocess.run([*command, step], check=False).returncode, step
    last = subprocess.run([*command, "none"], stdout=subprocess.PIPE, check=True, encoding="utf-8")

    assert json.loads(last.stdout)[1]
    numbers: Counter[int] = Counter()
    ids = set()
    while len(numbers) < count:
        message = consumer.receive(SOON)
        consumer.acknowledge(message)
        order = json.loads(message.data())
        assert [1] == order["to"]
        numbers[order["number"]] += 1
        ids.add((order["number"], message.properties()["DEDUPE_ID"]))
    assert set(range(count)) == set(numbers)
    assert count == len(ids)
    eventually(lambda: dead.backlog() == 0)
