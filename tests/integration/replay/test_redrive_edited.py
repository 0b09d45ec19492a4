"""Dead letters that are edited on their way: what arrives, what is kept, what a kill leaves."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from datetime import datetime
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Long, Record, String

import pulsar_retry as pr
from pulsar_retry.replay import Edit, Filter, LetterContent, Undo, Undone
from pulsar_retry.replay.reading import LetterInPlace, read_letters
from pulsar_retry.replay.redriving.source import SUBSCRIPTION as KEEPER
from support.reading import SOON, eventually
from support.replay.redriving import Dead, received


class Order(Record):
    """A record of an application."""

    number = Long()
    city = String()


def fixed(letter: LetterContent) -> LetterContent:
    """Add 1000 to the number. Done twice, it would show."""
    order = letter.value
    order["number"] += 1000
    return letter.with_value(order)


def archived(dead: Dead) -> list[LetterInPlace]:
    """Return what the archive keeps."""
    admin, topic = dead.cluster.admin(), f"{dead.dlq}-ARCHIVE"
    return list(read_letters(dead.client, admin, admin.topics.partition_names(topic), KEEPER))


def fill(dead: Dead, count: int, **options: Any) -> None:
    """Publish dead letters, whose payloads are JSON with their numbers."""
    dead._ensure()
    producer: Any = dead.client.create_producer(dead.dlq, max_pending_messages=0, **options)
    for number in range(count):
        payload = f'{{"number": {number}, "city": "Zoë"}}'.encode()
        producer.send_async(
            payload, None, properties=dead.properties(number), partition_key=f"k{number}"
        )
    producer.flush()
    producer.close()


def test_a_letter_is_edited_and_its_original_kept(dead) -> None:
    """The copy says who edited what, when and with what; the archive has the original."""
    consumer = dead.subscribe()
    fill(dead, 3)

    def fix(letter: LetterContent) -> LetterContent | None:
        number = letter.value["number"]
        if number == 1:
            return None
        if number == 2:
            raise ValueError("no such city")
        return fixed(letter).with_properties({"shop": "7"}).with_key("new")

    edit = Edit.of_function(fix, "fixes:fix", by="ada", why="INC-1")
    plan = dead.redrive(edit=edit, dry_run=True).run()
    expected = {"left_by_edit": 1, "edit_refused": 1}
    assert (1, 1, expected, edit.id) == (plan.redriven, plan.edited, plan.left, plan.edit)
    (diff,) = plan.diffs
    assert {
        '-  "number": 0,',
        '+  "number": 1000,',
        '   "city": "Zoë"',
        "+new",
        "+shop = 7",
    } <= set(diff.text.splitlines())
    assert 3 == dead.backlog()

    done = dead.redrive(edit=edit).run()

    assert (1, 1, expected, False) == (done.redriven, done.edited, done.left, done.is_complete)
    assert any("ValueError: no such city" in each for each in done.problems)
    (message,) = received(consumer, 1)
    properties = message.properties()
    original = '{"number": 0, "city": "Zoë"}'.encode()
    assert {"number": 1000, "city": "Zoë"} == json.loads(message.data())
    assert ("new", "7", 1) == (message.partition_key(), properties["shop"], pr.attempt_of(message))
    assert {
        "EDITED_WITH": edit.id,
        "EDITED_BY": "ada",
        "EDITED_SHA256": hashlib.sha256(original).hexdigest(),
        "EDITED_FROM": properties["REDRIVEN_FROM"],
        "EDITED_JOB": done.job,
    }.items() <= properties.items()
    assert datetime.fromisoformat(properties["EDITED_AT"]).tzinfo
    (kept,) = archived(dead)
    noted = kept.raw.properties()
    assert (original, "k0", "edited", "INC-1") == (
        kept.raw.data(),
        kept.raw.partition_key(),
        noted["ARCHIVED_AS"],
        noted["ARCHIVED_WHY"],
    )
    assert (properties["EDITED_FROM"], dead.retry) == (noted["ARCHIVED_FROM"], noted["ARCHIVED_TO"])
    eventually(lambda: dead.backlog() == 2)


def test_a_letter_that_dies_again_is_not_edited_twice(dead) -> None:
    """The same edit redrives it as it is; another one edits it again, and keeps what it was."""
    consumer = dead.subscribe()
    fill(dead, 1)
    edit = Edit.of_function(fixed)
    for _ in range(2):
        dead.redrive(edit=edit).run()
        message = consumer.receive(60_000)
        assert 1000 == json.loads(message.data())["number"]
        consumer.dead_letter(message, reason="again")
        eventually(lambda: dead.backlog() == 1)
    assert 1 == len(archived(dead))
    for again in (Edit.of_patch({"number": 5}), edit):  # the first one, after another one
        done = dead.redrive(edit=again).run()
        assert (1, again is not edit) == (done.redriven, done.edited)
        message = consumer.receive(60_000)
        assert {"number": 5, "city": "Zoë"} == json.loads(message.data())
        consumer.dead_letter(message, reason="again")
        eventually(lambda: dead.backlog() == 1)
    properties = message.properties()
    assert ("4", edit.id) == (properties["REDRIVE_COUNT"], properties["EDITED_BEFORE"])
    assert [0, 1000] == [json.loads(each.raw.data())["number"] for each in archived(dead)]


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_a_letter_with_a_schema(dead, schema) -> None:
    """The edit sees the record, and it is encoded again; what does not fit is refused."""
    consumer = dead.subscribe(schema=schema(Order))
    dead._ensure()
    producer = dead.client.create_producer(dead.dlq, schema=schema(Order))
    producer.send(Order(number=1, city="Zoë"), properties=dead.properties(1))
    producer.send(Order(number=2, city=None), properties=dead.properties(2))
    only = Filter(properties={"number": "2"})
    if schema is AvroSchema:
        refused = dead.redrive(edit=Edit.of_patch({"price": 3}), where=only).run()
        assert ({"filtered": 1, "edit_refused": 1}, 0) == (refused.left, refused.redriven)
        assert "no field price" in refused.problems[0]
    done = dead.redrive(edit=Edit.of_function(fixed)).run()
    assert (2, 2, {}) == (done.redriven, done.edited, done.left)
    values = sorted((each.value().number, each.value().city) for each in received(consumer, 2))
    assert [(1001, "Zoë"), (1002, None)] == values
    back = {each.raw.int_schema_version() for each in archived(dead)}
    assert {0} == back


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
    """Each is edited once, arrives with its key, and its original is kept."""
    consumer = dead.subscribe()
    dead.create("keep", partitions=options.pop("partitions", 0))
    fill(dead, 20, **options)

    done = dead.redrive(edit=Edit.of_function(fixed)).run()

    assert (20, 20) == (done.redriven, done.edited)
    found = {json.loads(each.data())["number"]: each for each in received(consumer, 20)}
    assert {1000 + number for number in range(20)} == set(found)
    assert all(f"k{number - 1000}" == each.partition_key() for number, each in found.items())
    assert set(range(20)) == {json.loads(each.raw.data())["number"] for each in archived(dead)}
    eventually(lambda: dead.backlog() == 0)


def test_a_letter_in_chunks(dead) -> None:
    """Original and copy are as large as they need to be."""
    consumer = dead.subscribe()
    text = "x" * (6 << 20)
    dead.send(json.dumps({"number": 1, "text": text}).encode(), dead.properties(1))
    done = dead.redrive(edit=Edit.of_patch({"number": 2})).run()
    assert (1, 1) == (done.redriven, done.edited)
    (message,) = received(consumer, 1)
    assert {"number": 2, "text": text} == json.loads(message.data())
    (kept,) = archived(dead)
    assert {"number": 1, "text": text} == json.loads(kept.raw.data())


#: Redrives with an edit, and is killed at a step of the letter with a number.
PROGRAM = """
import json, os, signal, sys
from pulsar_retry.consumer.handoff.flight import InFlightLetter
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.replay import Cluster, Edit, Redrive
from pulsar_retry.replay.redriving import redrive as redriving, run
url, admin, source, step = sys.argv[1:]
redriving._IN_FLIGHT = 20  # otherwise the first run archives all originals at once
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

def edited(letter):
    order = letter.value
    order["number"] += 1000
    return letter.with_value(order)

def receipt(flight):
    is_copy = flight.letter.topic.endswith("RETRY")
    at("copy has a receipt" if is_copy else "original has a receipt")

before(HandOff, "landed", lambda _, flights: list(map(receipt, flights)))
before(InFlightLetter, "published", lambda flight, _: receipt(flight))
before(run.Run, "original_archived", lambda *_: at("before the copy"))
before(run.Run, "letter_published", lambda *_: at("acknowledged"))
before(run.Run, "_send", lambda *_: at("before all"))
redrive = Redrive(source, cluster=Cluster(url, admin_url=admin), edit=Edit.of_function(edited, "e"))
done = redrive.run()
print(json.dumps([done.redriven, done.edited, done.resumed, done.is_complete]))
"""
STEPS = [
    "before all",
    "original has a receipt",
    "before the copy",
    "copy has a receipt",
    "acknowledged",
]


def test_a_kill_at_every_step(dead) -> None:
    """Nothing is lost, nothing is edited twice, and each original is kept exactly once."""
    consumer = dead.subscribe()
    count = 400
    fill(dead, count, batching_enabled=False)
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        dead.broker.service_url,
        dead.broker.admin_url,
        dead.dlq,
    ]
    for step in STEPS:
        assert -9 == subprocess.run([*command, step], check=False).returncode, step
    last = subprocess.run([*command, "none"], stdout=subprocess.PIPE, check=True, encoding="utf-8")

    assert [count, True, True] == json.loads(last.stdout)[1:]
    numbers: Counter[int] = Counter()
    ids = set()
    while len(numbers) < count:
        message = consumer.receive(SOON)
        consumer.acknowledge(message)
        number = json.loads(message.data())["number"]
        numbers[number] += 1
        ids.add((number, message.properties()["DEDUPE_ID"]))
    assert {1000 + number for number in range(count)} == set(numbers)
    assert count == len(ids)
    originals = Counter(json.loads(each.raw.data())["number"] for each in archived(dead))
    assert dict.fromkeys(range(count), 1) == originals
    eventually(lambda: dead.backlog() == 0)


def test_an_edit_is_undone(dead) -> None:
    """Originals are back as they were; copies are taken back where they wait, or are dead again."""
    consumer = dead.subscribe()
    consumer.close()
    fill(dead, 6, batching_enabled=False)
    before = {each.raw.data(): each.raw.properties() for each in dead_letters(dead)}
    done = dead.redrive(edit=Edit.of_function(fixed), limit=4).run()
    assert (4, 4) == (done.redriven, done.edited)
    consumer = dead.subscribe()
    handled, dying = consumer.receive(60_000), consumer.receive(60_000)
    consumer.acknowledge(handled)
    consumer.dead_letter(dying, reason="worse")
    consumer.close()
    eventually(lambda: dead.backlog() == 3)

    def undo(**options: Any) -> Undone:
        return Undo(dead.dlq, done.job, cluster=dead.cluster, by="ada", **options).run()

    plan = undo(dry_run=True)
    expected = (4, 4, 2, 1, 1, {}, True)
    assert expected == (*facts(plan), plan.is_complete)
    assert 3 == dead.backlog()
    assert expected == (*facts(undo()), True)

    eventually(lambda: dead.backlog() == 6)
    after = {each.raw.data(): each.raw.properties() for each in dead_letters(dead)}
    assert before.keys() == after.keys()
    for payload, properties in after.items():
        properties.pop("RESTORED_FROM", None)
        assert before[payload] == properties
    consumer = dead.subscribe()
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1_000)
    with pytest.raises(pr.RedriveError, match="no originals"):
        undo()
    again = dead.redrive(edit=Edit.of_function(fixed)).run()
    assert (6, 6) == (again.redriven, again.edited)
    received(consumer, 6)


def test_an_edit_through_another_subscription_is_undone(dead) -> None:
    """It is named for the undo, too."""
    dead.subscribe().close()
    dead.create("keep", "other")
    fill(dead, 2)
    done = dead.redrive(edit=Edit.of_function(fixed), dlq_subscription="other", limit=1).run()
    consumer = dead.subscribe()
    consumer.dead_letter(consumer.receive(60_000), reason="worse")
    with pytest.raises(pr.RedriveError, match="subscription"):
        Undo(dead.dlq, done.job, cluster=dead.cluster).run()
    undone = Undo(dead.dlq, done.job, cluster=dead.cluster, dlq_subscription="other").run()
    assert (1, 1, True) == (undone.restored, undone.dead_again, undone.is_complete)
    eventually(lambda: dead.backlog("other") == 2)


def test_what_cannot_be_taken_back(dead, client) -> None:
    """Copies in a topic of all subscriptions are counted; originals that are there stay once."""
    other = client.subscribe(dead.topic, "shipping")
    dead.create("keep")
    fill(dead, 2, batching_enabled=False)
    done = dead.redrive("origin", edit=Edit.of_function(fixed)).run()
    received(other, 2)
    undone = Undo(dead.dlq, done.job, cluster=dead.cluster).run()
    assert (2, 2, 0, 0, 0, {dead.topic: 2}) == facts(undone)


def test_an_undo_waits_for_the_end_of_a_redrive(dead) -> None:
    """While a redrive takes letters, their originals are in the topic and in the archive."""
    dead.subscribe().close()
    fill(dead, 4, batching_enabled=False)
    done = dead.redrive(edit=Edit.of_function(fixed), limit=2).run()
    busy = dead.client.subscribe(dead.dlq, "keep", consumer_type=pulsar.ConsumerType.Exclusive)
    undo = Undo(dead.dlq, done.job, cluster=dead.cluster)
    with pytest.raises(pr.RedriveError, match="has a consumer"):
        undo.run()
    assert 2 == len(archived(dead))
    busy.close()
    assert (2, 2, 2, 0, 0, {}) == facts(undo.run())


def test_an_undo_is_killed(dead) -> None:
    """Each original is in the dead-letter topic once, and no copy is delivered."""
    dead.subscribe().close()
    count = 300
    fill(dead, count, batching_enabled=False)
    done = dead.redrive(edit=Edit.of_function(fixed)).run()
    command = [
        *(sys.executable, "-c", UNDO, dead.broker.service_url, dead.broker.admin_url),
        *(dead.dlq, done.job),
    ]
    for step in ("restored", "acknowledged"):
        assert -9 == subprocess.run([*command, step], check=False).returncode, step
    last = subprocess.run([*command, "none"], stdout=subprocess.PIPE, check=True, encoding="utf-8")
    assert json.loads(last.stdout)
    eventually(lambda: dead.backlog() == count)
    numbers = Counter(json.loads(each.raw.data())["number"] for each in dead_letters(dead))
    assert dict.fromkeys(range(count), 1) == numbers
    assert [] == archived(dead)
    with pytest.raises(pulsar.Timeout):
        dead.subscribe().receive(1_000)


def dead_letters(dead: Dead) -> list[LetterInPlace]:
    """Return the letters of the dead-letter topic."""
    admin = dead.cluster.admin()
    return list(read_letters(dead.client, admin, admin.topics.partition_names(dead.dlq), "keep"))


def facts(done: Undone) -> tuple[Any, ...]:
    """Return the counts of an undo."""
    counts = (done.edited, done.restored, done.waiting, done.dead_again, done.handled)
    return *counts, dict(done.elsewhere)


UNDO = """
import os, signal, sys
from pulsar_retry.replay import Cluster, Undo
from pulsar_retry.replay.redriving import run
url, admin, source, job, step = sys.argv[1:]
seen = {}

def at(what):
    seen[what] = seen.get(what, 0) + 1
    if what == step and seen[what] == 50:
        os.kill(os.getpid(), signal.SIGKILL)

whole, landed = run.Run._send, run.Run.letter_published
run.Run._send = lambda *given: (at("restored"), whole(*given))[1]
run.Run.letter_published = lambda *given: (at("acknowledged"), landed(*given))[1]
print(str(Undo(source, job, cluster=Cluster(url, admin_url=admin)).run().is_complete).lower())
"""
