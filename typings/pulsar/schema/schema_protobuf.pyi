from typing import Any

from .schema import Schema

HAS_PROTOBUF: bool

class ProtobufNativeSchema(Schema):
    def __init__(self, record_cls: type[Any]) -> None: ...
    def encode(self, obj: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...
