"""Handlers that take their own type, on a broker: threads, event loops and worker processes."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, BytesSchema, JsonSchema

import pulsar_retry as pr
from support.pull import typed

FORMS = {
    "threads": (typed.charge, typed.ship),
    "loop": (typed.charge_async, typed.ship_async),
    "processes": (typed.charge, typed.ship),
    "by hand": (typed.charge, typed.by_value),
    "by hand in a process": (typed.charge, typed.by_value),
}


def options_of(form: str) -> dict[str, Any]:
    """Return the options of a subscriber."""
    return {"workers": "processes"} if "process" in form else {}


def failures(letters: list[pulsar.Message]) -> dict[bytes, tuple[Any, ...]]:
    """Return what dead letters say, by the payload."""
    found = [(each.data(), pr.DeadLetter.of(each).failure) for each in letters]
    return {data: (each.reason, each.stage, each.attempt) for data, each in found}


@pytest.mark.parametrize("form", ["threads", "loop", "processes"])
def test_json(start, publish, dead_letters, form):
    """A dataclass is decoded at each attempt; what is none, or null, is dead at the first."""
    handler, _ = FORMS[form]
    start(handler, concurrency=1, **options_of(form))
    good, broken = b'{"item": "tea", "price": "4"}', b'{"item": "tea"}'
    publish(broken)
    publish(None)
    publish(good)
    assert failures(dead_letters(3)) == {
        broken: ("undecodable", "decode", 1),
        b"": ("undecodable", "decode", 1),
        good: ("Payment tea 4", "handler", 2),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_what_the_schema_gives(client, topic, start, dead_letters, form, kind):
    """Its record at each attempt; what it cannot decode is dead at the first."""
    _, handler = FORMS[form]
    schema = kind(typed.Order)
    good = schema.encode(typed.Order(item="tea", price=4))
    start(handler, schema=schema, concurrency=1, **options_of(form))
    producer = client.create_producer(topic, schema=Encoded(kind(typed.Order)))
    producer.send(b"\x02")
    producer.send(good)
    assert failures(dead_letters(2)) == {
        b"\x02": ("undecodable", "decode", 1),
        good: ("Order tea 4", "handler", 2),
    }


@pytest.mark.parametrize("form", ["threads", "processes"])
def test_an_older_schema(client, topic, start, dead_letters, form):
    """A message is decoded by the schema that it was written with, its letter too."""
    _, handler = FORMS[form]
    old = client.create_producer(topic, schema=AvroSchema(None, typed.OLD_ORDER))
    old.send({"item": "tea", "note": "in a box", "price": 5})
    start(handler, schema=AvroSchema(typed.Order), concurrency=1, **options_of(form))
    (dead,) = dead_letters(1)
    assert "Order tea 5" == pr.DeadLetter.of(dead).failure.reason


class Encoded(BytesSchema):
    """A schema whose payloads are already encoded."""

    def __init__(self, schema: Any) -> None:
        super().__init__()
        self._schema_info = schema.schema_info()
