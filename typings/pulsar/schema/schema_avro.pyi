from typing import Any

from .definition import Record
from .schema import Schema

HAS_AVRO: bool

class AvroSchema(Schema):
    def __init__(
        self, record_cls: type[Record] | None, schema_definition: dict[str, Any] | None = None
    ) -> None: ...
    def encode(self, obj: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...
