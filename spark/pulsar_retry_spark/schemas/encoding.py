"""Encodes the structs of a column by a schema, in a worker. Pure."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from pulsar_retry_spark.schemas.avro import for_fastavro
from pulsar_retry_spark.schemas.registry import TopicSchema, need_fastavro
from pulsar_retry_spark.schemas.rows import ValueRefusedError, to_avro, to_json


class Encoder:
    """Encodes values by one schema. Not thread-safe."""

    def __init__(self, schema: TopicSchema, path: str) -> None:
        """Make an encoder.

        Args:
            schema: A schema of the type AVRO or JSON.
            path: The name of the column, for errors.

        Raises:
            ConfigError: fastavro is not installed, or the schema has no columns.
        """
        need_fastavro(schema, "value.schema")
        kind, self._path = schema.type(), path
        is_avro = schema.kind == "AVRO"
        self._convert = to_avro(kind, path) if is_avro else to_json(kind, path)
        self._encode = _avro_writer(schema.definition) if is_avro else _json_bytes

    def encode(self, column: pa.Array) -> pa.Array:
        """Return the values as bytes; a null stays null, which is a tombstone.

        Raises:
            ValueRefusedError: a value does not fit the schema.
        """
        try:
            rows = column.to_pylist()
            encoded = [None if row is None else self._encode(self._convert(row)) for row in rows]
        except ValueRefusedError:
            raise
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            text = f"{self._path} does not fit the topic's schema: {type(error).__name__}"
            raise ValueRefusedError(text) from None
        return pa.array(encoded, pa.large_binary())


def _avro_writer(definition: str) -> Callable[[Any], bytes]:
    import fastavro  # noqa: PLC0415 - optional

    schema = for_fastavro(json.loads(definition))
    write = fastavro.schemaless_writer

    def encode(value: Any) -> bytes:
        buffer = io.BytesIO()
        write(buffer, schema, value)
        return buffer.getvalue()

    return encode


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
