"""The codecs of payloads that need no further package. Pure."""

from __future__ import annotations

import abc
import json
import struct
from decimal import Decimal
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
    """Reads payloads of one schema as values that JSON can express, and writes such values.

    Attributes:
        schema: The type of the schema, as Pulsar names it; None if there is no schema.
    """

    schema: str | None = None

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload.

        Raises:
            PayloadError: the payload does not have this schema.
        """
        return self._decode(payload)

    def encode(self, value: Any) -> bytes:
        """Return the payload of a value.

        Raises:
            PayloadError: the value does not fit the schema.
        """
        return self._encode(value)

    def encode_edited(self, value: Any, original: bytes) -> bytes:
        """Return the payload of a *value* that was made from that of the *original* payload.

        Raises:
            PayloadError: the value does not fit the schema, or encoding would change also what was
                not edited, such as a field that only the original's writer knows.
        """
        if not self._keeps(original):
            raise PayloadError(
                "encoding this payload again would change more than the edit does, for example "
                "digits of a number, a key that occurs twice, or a field that the schema does not "
                "have"
            )
        return self.encode(value)

    @abc.abstractmethod
    def _decode(self, payload: bytes) -> Any: ...

    @abc.abstractmethod
    def _encode(self, value: Any) -> bytes: ...

    def _keeps(self, payload: bytes) -> bool:
        """Tell whether a payload that is decoded and encoded again says the same."""
        return self._encode(self._decode(payload)) == payload


class JsonCodec(PayloadCodec):
    """JSON, with or without a schema. Its definition is not checked: the broker does not either."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    def _decode(self, payload: bytes) -> Any:
        try:
            return json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise PayloadError(f"the payload is not JSON: {error}") from None

    def _encode(self, value: Any) -> bytes:
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"the value is not JSON: {error}") from None

    def _keeps(self, payload: bytes) -> bool:
        try:
            written = self._encode(self._decode(payload))
        except PayloadError:
            self._decode(payload)  # it can be read, but not be written
            return False
        return bool(_exactly(payload) == _exactly(written))


def _exactly(payload: bytes) -> Any:
    """Return JSON with all digits of its numbers, and all of its keys."""
    return json.loads(payload, parse_float=Decimal, object_pairs_hook=_with_repeated_keys)


def _with_repeated_keys(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    return found if len(found) == len(pairs) else pairs


class TextCodec(PayloadCodec):
    """The schema STRING: a value is a text."""

    schema = "STRING"

    def _decode(self, payload: bytes) -> str:
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise PayloadError(f"the payload is not UTF-8: {error}") from None

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise PayloadError(f"the schema STRING needs a text, not {type(value).__name__}")
        return value.encode()


class NumberCodec(PayloadCodec):
    """The schemas of one number or truth value."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._form = struct.Struct(NUMBERS[schema])

    def _decode(self, payload: bytes) -> Any:
        try:
            return self._form.unpack(payload)[0]
        except struct.error as error:
            raise PayloadError(f"the payload is no {self.schema}: {error}") from None

    def _encode(self, value: Any) -> bytes:
        try:
            return self._form.pack(value)
        except (struct.error, OverflowError) as error:
            raise PayloadError(f"the value is no {self.schema}: {error}") from None


class UnknownCodec(PayloadCodec):
    """A schema whose payloads cannot be read here."""

    def __init__(self, schema: str, why: str) -> None:
        self.schema, self._why = schema, why

    def _decode(self, payload: bytes) -> Any:  # noqa: ARG002 - as in the other codecs
        raise PayloadError(self._why)

    def _encode(self, value: Any) -> bytes:  # noqa: ARG002 - as in the other codecs
        raise PayloadError(self._why)


#: The codec of messages without a schema.
PLAIN = JsonCodec()
