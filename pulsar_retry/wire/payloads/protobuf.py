"""Protobuf messages as values that JSON can express, by the descriptor in the schema registry.

Pure; it needs protobuf. The form is Protobuf's own JSON, with the names of the fields as they are
in the ``.proto`` file. Bytes are base64 there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory


def reader_of(definition: str) -> Callable[[bytes], Any]:
    """Return what reads payloads of a message type.

    Args:
        definition: A set of descriptors, and the name of the message, as JSON.

    Raises:
        Exception: the definition is invalid; protobuf's errors differ by its implementation.
    """
    facts = json.loads(definition)
    files = descriptor_pb2.FileDescriptorSet.FromString(
        base64.b64decode(facts["fileDescriptorSet"])
    )
    pool = descriptor_pool.DescriptorPool()
    for each in files.file:
        pool.Add(each)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(facts["rootMessageTypeName"]))

    def read(payload: bytes) -> Any:
        return json_format.MessageToDict(
            kind.FromString(payload), preserving_proto_field_name=True, descriptor_pool=pool
        )

    return read
