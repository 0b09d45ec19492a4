from .definition import (
    Array as Array,
    Boolean as Boolean,
    Bytes as Bytes,
    CustomEnum as CustomEnum,
    Double as Double,
    Field as Field,
    Float as Float,
    Integer as Integer,
    Long as Long,
    Map as Map,
    Null as Null,
    Record as Record,
    String as String,
)
from .schema import (
    BytesSchema as BytesSchema,
    JsonSchema as JsonSchema,
    Schema as Schema,
    StringSchema as StringSchema,
)
from .schema_avro import (
    AvroSchema as AvroSchema,
)
from .schema_protobuf import (
    ProtobufNativeSchema as ProtobufNativeSchema,
)
