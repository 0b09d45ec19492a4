"""What an edit gets and returns. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from pulsar_retry.errors import PayloadError
from pulsar_retry.wire.payloads.codec import PLAIN, PayloadCodec
from pulsar_retry.wire.properties import SYSTEM_PROPERTIES


def _read_only(given: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(given))


@attrs.frozen(kw_only=True)
class LetterContent:
    """What of a dead letter an edit can read and change. It does not change itself.

    Attributes:
        payload: The bytes; None for a null value.
        properties: All properties, also those about the failure.
        key: The partition key; None if there is none.
        message_id: The id of the letter, as it is printed. A change of it has no effect.
        codec: Decodes and encodes the payload by the schema of the letter.
    """

    payload: bytes | None
    properties: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_read_only)
    key: str | None = None
    message_id: str = ""
    codec: PayloadCodec = attrs.field(default=PLAIN, repr=False, eq=False)

    @property
    def value(self) -> Any:
        """The payload as a value that JSON can express: a new object at each call.

        Without a schema, the payload has to be JSON. Avro and Protobuf records are decoded.

        Raises:
            PayloadError: the payload cannot be decoded.
        """
        if self.payload is None:
            raise PayloadError("the letter has a null value")
        return self.codec.decode(self.payload)

    def with_value(self, value: Any) -> LetterContent:
        """Return the letter with another value, encoded by the schema of the letter.

        Raises:
            PayloadError: the value does not fit the schema, or encoding would change also what was
                not edited, such as digits of a number that Python does not keep.
        """
        if self.payload is None:
            raise PayloadError("the letter has a null value")
        if _text(value) == _text(self.value):
            return self
        return attrs.evolve(self, payload=self.codec.encode_edited(value, self.payload))

    def with_payload(self, payload: bytes) -> LetterContent:
        """Return the letter with another payload, which must fit the schema of the letter."""
        return attrs.evolve(self, payload=payload)

    def with_properties(self, changes: Mapping[str, str | None]) -> LetterContent:
        """Return the letter with changed properties; None removes one."""
        changed = {**self.properties, **changes}
        kept = {name: text for name, text in changed.items() if text is not None}
        return attrs.evolve(self, properties=kept)

    def with_key(self, key: str | None) -> LetterContent:
        """Return the letter with another partition key; None removes it."""
        return attrs.evolve(self, key=key)

    def checked_against(self, original: LetterContent) -> LetterContent:
        """Return this letter, if it can take the place of *original*.

        Raises:
            PayloadError: it cannot.
        """
        if self.payload is None:
            if original.payload is not None:
                raise PayloadError("an edit cannot remove the payload")
        elif not isinstance(self.payload, bytes):
            raise PayloadError(f"a payload is bytes, not {type(self.payload).__name__}")
        elif self.payload != original.payload and original.codec.schema is not None:
            original.codec.decode(self.payload)
        for name, text in self.properties.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise PayloadError(f"a property is a text with a name, not {name!r}={text!r}")
        for name in SYSTEM_PROPERTIES:
            if self.properties.get(name) != original.properties.get(name):
                raise PayloadError(f"an edit cannot change the property {name}")
        if self.key is not None and not isinstance(self.key, str):
            raise PayloadError(f"a key is a text, not {type(self.key).__name__}")
        return self


def _text(value: Any) -> str:
    """Return a text that differs for 1, 1.0 and true, which are equal in Python."""
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"the value is not JSON: {error}") from None
