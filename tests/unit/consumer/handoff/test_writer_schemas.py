"""The schemas that messages were written with."""

from __future__ import annotations

from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.handoff.writer_schemas import WireSchema, WriterSchemas

SCHEMA = pulsar.schema.StringSchema()


class Message:
    """A raw message of one topic and schema version."""

    def __init__(self, topic: str, version: int) -> None:
        self.topic_name = lambda: topic
        self.int_schema_version = lambda: version


class Registry:
    """The broker's schemas: two versions, which each partition numbers in its own way."""

    def __init__(self) -> None:
        self._client = self
        self.asked: list[tuple[str, int]] = []

    def get_schema_info(self, topic: str, version: int) -> Any:
        """Return one of two schemas."""
        self.asked.append((topic, version))
        number = (version + int(topic[-1])) % 2
        return _pulsar.SchemaInfo(_pulsar.SchemaType.AVRO, topic, f"schema {number}")


def test_equal_schemas_of_several_partitions_are_one() -> None:
    """Or each partition would have a producer of letters of its own, and a thread."""
    registry = Registry()
    written = WriterSchemas(registry)  # type: ignore[arg-type]
    found = [written.of(Message(f"orders-{n}", version)) for n in range(9) for version in (0, 1)]
    assert 2 == len(set(found))
    assert found[0] is found[3]
    assert found[0] is not found[1]


def test_a_schema_is_asked_for_once() -> None:
    """And what is known is told without asking."""
    registry, message = Registry(), Message("orders-1", 0)
    written = WriterSchemas(registry)  # type: ignore[arg-type]
    assert not written.knows(message)
    assert written.of(message) is written.of(message)
    assert written.knows(message)
    assert [("orders-1", 0)] == registry.asked


def test_a_message_without_a_schema_has_none() -> None:
    """Nobody is asked."""
    registry, message = Registry(), Message("orders-1", -1)
    written = WriterSchemas(registry)  # type: ignore[arg-type]
    assert written.knows(message)
    assert written.of(message) is None
    assert [] == registry.asked


def test_a_wire_schema_leaves_bytes_alone() -> None:
    """Letters carry what was received, encoded already."""
    info = SCHEMA.schema_info()
    schema = WireSchema(info)
    assert (b"\x00\xff", info) == (schema.encode(b"\x00\xff"), schema.schema_info())
