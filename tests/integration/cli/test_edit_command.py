"""Fix and redrive, and undo it, as an operator does; and what payloads look like."""

from __future__ import annotations

import json

from pulsar.schema import AvroSchema, Long, Record, String

from support.reading import SUBSCRIPTION, eventually
from support.replay.redriving import received


class Parcel(Record):
    """A record of an application."""

    weight = Long()
    city = String()


def test_the_fix_was_wrong(dead, run, run_json, namespace, tmp_path) -> None:
    """Dry run with a diff, redrive, undo, another fix; each is in the audit log with its edit."""
    consumer = dead.subscribe()
    consumer.close()
    for number in range(3):
        dead.send(json.dumps({"city": "Zoë", "price": number}).encode(), dead.properties(number))
    code, text, errors = run("redrive", dead.dlq, "--patch", '{"price": 100}', "--dry-run")
    assert 0 == code, errors
    assert '-  "price": 1\n+  "price": 100' in text
    assert "3 would be changed by patch@" in text
    code, text, errors = run("redrive", dead.dlq, "--patch", '{"price": 100}', "--yes")
    assert (0, ["event=start", "event=end"]) == (code, [e.split()[1] for e in errors.splitlines()])
    assert f"verb=redrive what=redriven topic={dead.dlq} result=ok done=3" in errors
    undo = text.splitlines()[-1].removeprefix("To undo it: pulsar-retry ").split()
    assert ["dlq", "undo", dead.dlq] == undo[:3]

    code, text, errors = run(*undo, "--dry-run")
    assert 0 == code, errors
    assert "3 of 3 originals would be restored" in text
    assert "3 edited copies waited for their consumer and would be taken back" in text
    undone = run_json(*undo, "--yes", "--why", "wrong price")
    assert (3, 3) == (undone["restored"], undone["waiting"])

    fixes = tmp_path / "fixes.py"
    fixes.write_text(
        "def price(letter):\n"
        "    parcel = letter.value\n"
        "    if not parcel['price']:\n"
        "        raise ValueError('a free parcel')\n"
        "    return letter.with_value({**parcel, 'price': parcel['price'] * 100})\n"
    )
    transform = ("--transform", f"{fixes}:price")
    code, text, errors = run("redrive", dead.dlq, *transform, "--yes", "--by", "ada", "--json")
    done = json.loads(text)
    assert (1, 2, 2, {"edit_refused": 1}) == (
        code,
        done["redriven"],
        done["edited"],
        done["left"],
    )
    assert "ValueError: a free parcel" in done["problems"][0]
    consumer = dead.subscribe()
    messages = received(consumer, 2)
    assert [100, 200] == sorted(json.loads(each.data())["price"] for each in messages)
    assert {"fixes:price"} == {each.properties()["EDITED_WITH"].split("@")[0] for each in messages}
    assert {"ada"} == {each.properties()["EDITED_BY"] for each in messages}
    entries = run_json("audit", "ls", namespace)
    assert ["redrive", "dlq undo", "redrive"] == [each["verb"] for each in entries]
    assert (done["edit"], 2) == (entries[0]["result"]["edit"], entries[0]["result"]["edited"])
    code, text, errors = run("dlq", "undo", dead.dlq, "nothing", "--yes")
    assert (1, True) == (code, "no originals" in errors)


def test_payloads_by_their_schemas(dead, run, run_json, tmp_path) -> None:
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
    file = tmp_path / "letters.csv"
    assert 0 == run("dlq", "export", dead.dlq, "--output", str(file))[0]
    assert '"{""weight"": 7, ""city"": ""Zoë""}"' in file.read_text()
    assert not {"schema", "value", "problem"} & (escaped.keys() | binary.keys())
    assert SUBSCRIPTION in avro["subscription"]
    eventually(lambda: dead.backlog() == 3)
