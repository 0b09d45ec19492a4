"""Fix and redrive, as an operator does; and what payloads look like."""

from __future__ import annotations

import json

from pulsar.schema import AvroSchema, Long, Record, String

from support.reading import SUBSCRIPTION
from support.replay.redriving import received
from support.waiting import eventually


class Parcel(Record):
    """A record of an application."""

    weight = Long()
    city = String()


def test_fix_and_redrive(dead, run, run_json, namespace, tmp_path) -> None:
    """Dry run with a diff, then the redrive; the audit log has the patch, also that of a file."""
    consumer = dead.subscribe()
    for number in range(3):
        dead.send(json.dumps({"city": "Zoë", "price": number}).encode(), dead.properties(number))
    code, text, errors = run("redrive", dead.dlq, "--patch", '{"price": 100}', "--dry-run")
    assert 0 == code, errors
    assert '-  "price": 1\n+  "price": 100' in text
    assert "3 would be changed by the patch" in text
    _, text, _ = run("redrive", dead.dlq, "--patch", '{"price": 1}', "--dry-run")
    assert 2 == text.count("--- payload before")
    assert "2 would be changed by the patch" in text

    fix = tmp_path / "fix.json"
    fix.write_text('{"price": 7}')
    only = ("--property", "number=1", "--json", "--yes")
    code, text, errors = run("redrive", dead.dlq, "--patch", str(fix), *only)
    done = json.loads(text)
    assert (0, 1, 1, {"filtered": 2}) == (code, done["redriven"], done["patched"], done["left"])
    code, text, errors = run("redrive", dead.dlq, "--patch", '{"price": 100}', "--yes")
    assert (0, "") == (code, errors)
    assert "2 changed by the patch" in text
    assert [7, 100, 100] == sorted(json.loads(m.data())["price"] for m in received(consumer, 3))
    entries = run_json("audit", "ls", namespace)
    assert ["redrive", "redrive"] == [each["verb"] for each in entries]
    assert ('{"price": 100}', 2) == (entries[0]["given"]["patch"], entries[0]["result"]["patched"])
    assert json.loads(fix.read_text()) == json.loads(entries[1]["given"]["patch"])
    for patch in ("nothing.json", "{", "[3]"):
        code, _, errors = run("redrive", dead.dlq, "--patch", patch, "--yes")
        assert (2, True) == (code, "patch" in errors)


def test_payloads_by_their_schemas(dead, run) -> None:
    """An Avro record is shown as JSON, text with readable characters, and other bytes as hex."""
    dead._ensure()
    producer = dead.client.create_producer(dead.dlq, schema=AvroSchema(Parcel))
    producer.send(Parcel(weight=7, city="Zoë"), properties=dead.properties(1))
    dead.send(b'{"city": "Zo\\u00eb"}', dead.properties(2))
    dead.send(b"\xff\x00", dead.properties(3))
    code, text, errors = run("dlq", "export", dead.dlq)
    letters = [json.loads(each) for each in text.splitlines()]
    assert (0, 3) == (code, len(letters)), errors
    avro, escaped, binary = letters
    assert ("AVRO", {"weight": 7, "city": "Zoë"}) == (avro["schema"], avro["value"])
    shown = [run("dlq", "show", dead.dlq, each["message_id"])[1] for each in letters]
    assert 'payload (AVRO):\n{\n  "weight": 7,\n  "city": "Zoë"\n}' in shown[0]
    assert '"city": "Zoë"' in shown[1]
    assert "2 bytes:\n00000000  ff 00" in shown[2]
    assert not {"schema", "value", "problem"} & (escaped.keys() | binary.keys())
    assert SUBSCRIPTION in avro["subscription"]
    eventually(lambda: dead.backlog() == 3)
