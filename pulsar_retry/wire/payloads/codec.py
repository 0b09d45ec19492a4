"""The codecs of payloads that need no further package. Pure."""

from __future__ import annotations

import abc
import json
import struct
from typing import Any

from pulsar_retry.errors import PayloadError

#: The types of schemas that hold one number, and its form in `struct`: Java writes big-endian.
NUMBERS = {
    "INT8": ">b",
    "INT16": ">h",
    "INT32": ">i",
    "INT64": ">q",
    "FLOAT": ">f",
    "DOUBLE": ">d",
}


class PayloadCodec(abc.ABC):
    """Reads payloads of one schema as values that JSON can express.

    Attributes:
        schema: The type of the schema, as Pulsar names it; None if there is no schema.
    """

    schema: str | None = None

    @abc.abstractmethod
    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload.

        Raises:
            PayloadError: the payload does not have this schema.
        """


class JsonCodec(PayloadCodec):
    """JSON, with or without a schema. Its definition is not checked: the broker does not either."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload; see `PayloadCodec`."""
        try:
            return json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise PayloadError(f"the payload is not JSON: {error}") from None


class TextCodec(PayloadCodec):
    """The schema STRING: a value is a text."""

    schema = "STRING"

    def decode(self, payload: bytes) -> str:
        """Return the value of a payload; see `PayloadCodec`."""
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise PayloadError(f"the payload is not UTF-8: {error}") from None


class NumberCodec(PayloadCodec):
    """The schemas of one number or truth value."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._form = struct.Struct(NUMBERS[schema])

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload; see `PayloadCodec`."""
        try:
            return self._form.unpack(payload)[0]
        except struct.error as error:
            raise PayloadError(f"the payload is no {self.schema}: {error}") from None


class UnknownCodec(PayloadCodec):
    """A schema whose payloads cannot be read here."""

    def __init__(self, schema: str, why: str) -> None:
        self.schema, self._why = schema, why

    def decode(self, payload: bytes) -> Any:  # noqa: ARG002 - as in the other codecs
        """Return the value of a payload; see `PayloadCodec`."""
        raise PayloadError(self._why)


#: The codec of messages without a schema.
PLAIN = JsonCodec()
