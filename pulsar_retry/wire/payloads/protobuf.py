"""Protobuf messages as values that JSON can express, by the descriptor in the schema registry.

Pure; it needs protobuf. The form is Protobuf's own JSON, with the names of the fields as they are
in the ``.proto`` file. Bytes are base64 there.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from pulsar_retry.errors import PayloadError
from pulsar_retry.wire.payloads.codec import PayloadCodec


class ProtobufCodec(PayloadCodec):
    """Payloads of one message type."""

    schema = "PROTOBUF_NATIVE"

    def __init__(self, definition: str) -> None:
        """Read the definition of a schema: a set of descriptors, and the name of the message.

        Raises:
            PayloadError: it is not one.
        """
        try:
            facts = json.loads(definition)
            files = descriptor_pb2.FileDescriptorSet.FromString(
                base64.b64decode(facts["fileDescriptorSet"])
            )
            self._pool = descriptor_pool.DescriptorPool()
            for each in files.file:
                self._pool.Add(each)
            descriptor = self._pool.FindMessageTypeByName(facts["rootMessageTypeName"])
            self._message = message_factory.GetMessageClass(descriptor)
        except Exception as error:  # noqa: BLE001 - protobuf's errors differ by its implementation
            raise PayloadError(f"{type(error).__name__}: {error}") from None

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload; see `PayloadCodec`."""
        try:
            message = self._message.FromString(payload)
        except Exception as error:  # noqa: BLE001 - DecodeError's place differs
            text = f"the payload is no {self._message.DESCRIPTOR.full_name}: {error}"
            raise PayloadError(text) from None
        try:
            return json_format.MessageToDict(
                message, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
        except Exception as error:  # noqa: BLE001 - an Any whose type is not known
            raise PayloadError(f"the payload cannot be shown as JSON: {error}") from None
