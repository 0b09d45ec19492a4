"""Handlers that take their own type, and payloads that cannot be decoded."""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NotRequired, TypeVar

import pulsar
import pydantic
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, StringSchema
from typing_extensions import TypedDict

import pulsar_retry as pr
from pulsar_retry.consumer.handoff.writer_schemas import LettersSchema
from pulsar_retry.pull.typed import of_message
from pulsar_retry.pull.workers.pickled import Writers, carried, restored
from pulsar_retry.runtime.upstream import message_of, undecodable
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.testing.memory.message import Content, RawMessage, StoredMessage
from support.pull.handling import SOON

BYTES = BytesSchema()


@dataclasses.dataclass
class Payment:
    """A dataclass."""

    item: str
    price: int = 1

    def __post_init__(self) -> None:
        """Fail as the item says."""
        if self.item in FAULTS:
            raise FAULTS[self.item]


FAULTS = {each.__name__: each for each in (ValueError, TypeError, KeyError, ConnectionError)}


class Typed(TypedDict):
    """A TypedDict."""

    item: str
    price: NotRequired[int]


class Model(pydantic.BaseModel):
    """A pydantic model."""

    item: str = pydantic.Field(alias="Item")
    price: int = 1


class Order(Record):
    """What a schema gives."""

    number = Integer()


class Marked(pulsar.Message):
    """A message of somebody's own."""


class Stored:
    """Stands in for pulsar-client's raw message."""

    def __init__(self, data: bytes | None) -> None:
        self.data = lambda: data or b""
        self.has_null_value = lambda: data is None


def received(data: bytes | None, schema: Any = BYTES) -> pulsar.Message:
    """Return a message with a payload, or with a null value."""
    message = pulsar.Message()
    message._message, message._schema = Stored(data), schema
    return message


def result_of(handler: Callable[..., Any], data: bytes | None, schema: Any = BYTES) -> Any:
    """Return what a handler returns for a payload."""
    return of_message(handler, schema)(received(data, schema))


# -- what is given ------------------------------------------------------------------------------


def payment(it: Payment) -> Any:
    """Take a dataclass."""
    return it


def with_message(it: Payment, message: pulsar.Message) -> Any:
    """Take the message too."""
    assert isinstance(message, pulsar.Message)
    return it


def with_untyped(it: Payment, message) -> Any:  # type: ignore[no-untyped-def]
    """Take something else too."""
    return with_message(it, message)


def with_optional_message(it: Payment, message: pulsar.Message | None = None) -> Any:
    """Take the message if it is given."""
    assert message is not None
    return it


def with_defaults(it: Payment, retries: int = 3, *, mode: str = "a") -> Any:
    """Have settings."""
    assert (retries, mode) == (3, "a")
    return it


def bound(database: str, it: Payment, message: pulsar.Message) -> Any:
    """Have an argument of its own."""
    assert "database" == database
    return with_message(it, message)


def forgetful(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a decorator makes of a handler."""

    @functools.wraps(handler)
    def call(*arguments: Any, **options: Any) -> Any:
        return handler(*arguments, **options)

    return call


class Worker:
    """Has a handler, and is one."""

    def handle(self, it: Payment) -> Any:
        return it

    def __call__(self, it: Payment, message: pulsar.Message) -> Any:
        return with_message(it, message)

    @staticmethod
    def still(it: Payment) -> Any:
        return it


FORMS = {
    "a function": payment,
    "with the message": with_message,
    "with something": with_untyped,
    "with the message, optionally": with_optional_message,
    "with defaults": with_defaults,
    "a partial": functools.partial(bound, "database"),
    "a decorated function": forgetful(with_message),
    "decorated twice": forgetful(forgetful(payment)),
    "a partial of a decorated one": functools.partial(forgetful(bound), "database"),
    "a method": Worker().handle,
    "a callable": Worker(),
    "a static method": Worker.still,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_handler_gets_its_type(form: str) -> None:
    """Whatever kind of callable it is, and the message if it wants it."""
    assert Payment("tea", 4) == result_of(FORMS[form], b'{"item": "tea", "price": 4}')


def typed_dict(it: Typed) -> Any:
    """Take a dict."""
    return it


def model(it: Model) -> Any:
    """Take a model."""
    return it


def optional(it: Payment | None) -> Any:
    """Take nothing for null."""
    return it


def annotated(it: Annotated[Payment, "a note"]) -> Any:
    """Take something with a note."""
    return it


@pytest.mark.parametrize(
    ("handler", "data", "expected"),
    [
        (payment, b'{"item": "tea", "new": 1}', Payment("tea")),
        (typed_dict, b'{"item": "tea"}', {"item": "tea"}),
        (model, b'{"Item": "tea", "price": 4}', Model(Item="tea", price=4)),
        (optional, b'{"item": "tea"}', Payment("tea")),
        (optional, None, None),
        (annotated, b'{"item": "tea"}', Payment("tea")),
    ],
)
def test_json_is_decoded(handler: Any, data: bytes | None, expected: object) -> None:
    """To a dataclass, a TypedDict or a pydantic model; a null value is None where that fits."""
    for schema in (BYTES, StringSchema()):
        assert expected == result_of(handler, data, schema)


def order(it: Order) -> Any:
    """Take what the schema gives."""
    return it.number


def any_record(it: Record) -> Any:
    """Take any record."""
    return it.number  # type: ignore[attr-defined]


def optional_order(it: Order | None, message: pulsar.Message) -> Any:
    """Take a record, or nothing."""
    return message.value() if it is None else it.number


AVRO = {"type": "record", "name": "It", "fields": [{"name": "item", "type": "string"}]}


@pytest.mark.parametrize("handler", [order, any_record, optional_order])
@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_the_schema_decodes(handler: Any, kind: Any) -> None:
    """A handler gets what its schema gives."""
    schema = kind(Order)
    schema.attach_client(None)
    assert 7 == result_of(handler, schema.encode(Order(number=7)), schema)


@pytest.mark.parametrize("handler", [payment, typed_dict])
def test_what_a_definition_gives_is_checked(handler: Any) -> None:
    """An Avro schema without a class gives dicts."""
    schema = AvroSchema(None, AVRO)
    schema.attach_client(None)
    found = result_of(handler, schema.encode({"item": "tea"}), schema)
    assert "tea" == (found["item"] if isinstance(found, dict) else found.item)


# -- handlers that take the message -------------------------------------------------------------


def plain(message):  # type: ignore[no-untyped-def]
    """Say nothing."""
    return message


def several(*messages: object) -> Any:
    """Take any number."""
    return messages[0]


def of_any(message: Any) -> Any:
    """Take anything."""
    return message


def of_message_type(message: pulsar.Message) -> unknown:  # type: ignore[name-defined]  # noqa: F821 - unknown
    """Return a type that is not defined."""
    return message


def of_its_subclass(message: Marked | None) -> Any:
    """Take a subclass."""
    return message


class Command:
    """Does its work when it is made."""

    def __init__(self, message: pulsar.Message) -> None:
        self.message = message


@pytest.mark.parametrize(
    "handler", [plain, several, of_any, of_message_type, of_its_subclass, print, Command]
)
def test_a_handler_of_messages_is_called_as_it_is(handler: Any) -> None:
    """Without an annotation, with `Any`, `object` or the class of messages; nothing is wrapped."""
    assert handler is of_message(handler, BYTES)


# -- what is refused ----------------------------------------------------------------------------


def unknown_name(it: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821 - unknown
    """Take what is not defined."""


def in_part(it: Annotated[Unknown | None, 1]) -> None:  # type: ignore[name-defined]  # noqa: F821 - unknown
    """Take what is not defined."""


def union(it: Payment | Typed) -> None:
    """Take one of two."""


def union_or_none(it: Payment | Typed | None) -> None:
    """Take one of two, or nothing."""


def payload(it: bytes) -> None:
    """Take the bare payload."""


def text(it: str | None) -> None:
    """Take text."""


def bare_dict(it: dict[str, Any]) -> None:
    """Take a dict."""


def number(it: int) -> None:
    """Take a number."""


def of_a_list(it: list[Payment]) -> None:
    """Take several."""


T = TypeVar("T")


def generic(it: T) -> T:
    """Take what nobody knows."""
    return it


def two_payloads(it: Payment, other: int) -> None:
    """Take too much."""


def three(it: Payment, message: pulsar.Message, other: int) -> None:
    """Take too much."""


def two_messages(message: pulsar.Message, other: pulsar.Message) -> None:
    """Take too much."""


def keyword(it: Payment, *, message: pulsar.Message) -> None:
    """Take it in a way that is not used."""


@dataclasses.dataclass
class Unfinished:
    """Has a field whose type is not defined."""

    it: Unknown  # type: ignore[name-defined]  # noqa: F821 - unknown


@dataclasses.dataclass
class Odd:
    """Has a field that pydantic cannot decode."""

    it: threading_lock  # type: ignore[name-defined]  # noqa: F821 - unknown


def unfinished(it: Unfinished) -> None:
    """Take what is not defined in part."""


def odd(it: Odd) -> None:
    """Take what cannot be decoded."""


def local() -> Any:
    """Return a handler of a class that only this function knows."""

    class Hidden(Payment):
        """Nobody else sees it."""

    def handle(it: Hidden) -> None:
        """Take it."""

    return handle


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (unknown_name, r"an annotation of 'it' that can be resolved .*'Unknown' is not defined"),
        (in_part, "can be resolved in the module"),
        (local(), "classes inside of a function, and imports for type checkers alone, cannot"),
        (union, "a dataclass, a TypedDict, a pydantic model or what the schema gives"),
        (union_or_none, "not .*Payment"),
        (payload, r"call message\.data\(\) or message\.value\(\); not <class 'bytes'>"),
        (text, "not str"),
        (bare_dict, "not dict"),
        (number, "a pydantic model or what the schema gives; not <class 'int'>"),
        (of_a_list, "not list"),
        (generic, "not ~T"),
        (two_payloads, r"'other' is no pulsar\.Message"),
        (three, "missing a required argument: 'other'"),
        (two_messages, "a function of one message.*missing a required argument: 'other'"),
        (keyword, "missing a required .*argument: 'message'"),
        (unfinished, "a type that pydantic can decode to .*Unknown"),
        (odd, "a type that pydantic can decode to"),
        (order, "not <class '.*Order'>"),
        (lambda: None, "too many positional arguments"),
    ],
)
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_what_cannot_be_decoded_to_is_refused(
    handler: Any, expected: str, workers: Any, memory: MemoryBroker
) -> None:
    """At the start, before anything is opened."""
    if sys.version_info >= (3, 14) and "inside" in expected:
        pytest.skip("with annotations that are no text, this Python can resolve it")
    with pytest.raises(pr.ConfigError, match=rf"^handler=.*: expected .*{expected}"):
        memory.client().subscriber("orders", "billing", handler, workers=workers)


@pytest.mark.parametrize("handler", [payment, typed_dict, model])
def test_what_the_schema_does_not_give_is_refused(handler: Any) -> None:
    """The error names what it gives."""
    with pytest.raises(pr.ConfigError, match="a function of Order, which the schema gives; not of"):
        of_message(handler, JsonSchema(Order))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the subscriber is made, and only for a handler that needs it."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert print is of_message(print, BYTES)
    assert 7 == result_of(order, b'{"number": 7}', JsonSchema(Order))
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"pulsar-retry\[typed\]\""):
        of_message(payment, BYTES)


# -- payloads that cannot be decoded ------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "data", "text", "kind"),
    [
        (payment, b"tea", "no Payment: Invalid JSON: expected ident", "Payment json_invalid"),
        (payment, b"\xff", "no Payment: Invalid JSON", "Payment json_invalid"),
        (payment, b"", "no Payment: Invalid JSON: EOF", "Payment json_invalid"),
        (payment, b"[" * 10_000, "no Payment: Invalid JSON: recursion", "Payment json_invalid"),
        (payment, b"{}", "no Payment: item: Field required", "Payment missing"),
        (payment, None, "the value is null, and no Payment", "Payment null"),
        (typed_dict, b"[]", "no Typed: Input should be a", "Typed dict_type"),
        (model, b'{"item": "x"}', "no Model: Item: Field required", "Model missing"),
        (optional, b'{"price": 1}', "no Payment: item: Field required", "Payment missing"),
        (payment, b'{"item": "ValueError"}', "no Payment: Value error", "Payment value_error"),
        (payment, b'{"item": "TypeError"}', "no Payment: TypeError", None),
    ],
)
def test_what_is_undecodable(handler: Any, data: bytes | None, text: str, kind: str | None) -> None:
    """The error says what is wrong with the payload."""
    with pytest.raises(pr.UndecodableError, match=text) as found:
        result_of(handler, data)
    assert kind == found.value.kind


def test_the_error_has_nothing_of_the_payload() -> None:
    """It may be secret, and errors are logged."""
    secret = json.dumps({"item": ["4111"], "price": "4111"}).encode()
    with pytest.raises(pr.UndecodableError) as found:
        result_of(payment, secret)
    assert "4111" not in str(found.value)


def test_trouble_with_the_definition_is_not_the_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may be away when the writer's schema is looked up."""
    schema = AvroSchema(None, AVRO)
    schema.attach_client(None)
    data = schema.encode({"item": "tea"})

    def away(_self: object) -> None:
        raise ValueError("the broker is away")

    monkeypatch.setattr(pulsar.Message, "value", away)
    with pytest.raises(ValueError, match="away") as found:
        result_of(payment, data, schema)
    assert not isinstance(found.value, pr.UndecodableError)


@pytest.mark.parametrize("kind", [KeyError, ConnectionError])
def test_other_errors_of_the_class_are_its_own(kind: type[Exception]) -> None:
    """They say nothing about the payload, and the policy decides."""
    with pytest.raises(kind) as found:
        result_of(payment, json.dumps({"item": kind.__name__}).encode())
    assert undecodable(found.value) is None


def test_many_problems_are_counted() -> None:
    """The first ones are named."""

    @dataclasses.dataclass
    class Wide:
        a: int
        b: int
        c: int
        d: int
        e: int

    def wide(_it: Any) -> None:
        """Take it."""

    wide.__annotations__ = {"_it": Wide}
    with pytest.raises(
        pr.UndecodableError, match=r"a: Field.*; b: .*; c: .* required; and 2 more$"
    ):
        result_of(wide, b"{}")


# -- a subscriber -------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    memory = MemoryBroker()
    yield memory
    memory.close()


def by_value(message: pulsar.Message) -> Any:
    """Decode by hand, as the schema does it."""
    return message.value().number


async def by_value_async(message: pulsar.Message) -> Any:
    """Do the same on an event loop."""
    return by_value(message)


async def payment_async(it: Payment, message: pulsar.Message) -> Any:
    """Take a dataclass on an event loop."""
    return with_message(it, message)


ORDERS = JsonSchema(Order)


@pytest.mark.parametrize(
    ("handler", "schema"),
    [
        (payment, BYTES),
        (payment_async, BYTES),
        (order, ORDERS),
        (by_value, ORDERS),
        (by_value_async, ORDERS),
    ],
)
@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_an_undecodable_payload_is_dead_at_once(
    memory: MemoryBroker, handler: Any, schema: Any, kind: str, redelivery: Any
) -> None:
    """Whatever the policy says: no retry can help. The letter says where it failed."""
    memory.send("orders", b"broken", key="k")
    memory.send("orders", b'{"item": "tea", "number": 7}', key="k")
    with memory.client().subscriber(
        "orders",
        "billing",
        handler,
        schema=schema,
        retry_policy=pr.RetryPolicy(retry_on=Exception, drop_on=ValueError),
        consumer_type=getattr(pulsar.ConsumerType, kind),
        redelivery=redelivery,
    ) as subscriber:
        memory.join("orders", "billing", timeout=5)
    report = subscriber.result(SOON)
    assert (1, 1, 0) == (report.acknowledged, report.dead_lettered, report.retried)
    (dead,) = memory.dead_letters("orders", "billing")
    failure = pr.DeadLetter.of(dead).failure
    assert (b"broken", "undecodable", "decode") == (dead.data(), failure.reason, failure.stage)
    assert ("UndecodableError", 1) == (failure.error, failure.attempt)


def test_a_handler_may_catch_what_the_schema_raises(memory: MemoryBroker) -> None:
    """As pulsar-client raises it; what the handler raises then is the policy's affair."""

    def handle(message: pulsar.Message) -> None:
        try:
            message.value()
        except json.JSONDecodeError as error:
            raise (pr.Reject("no JSON") if message.data() == b"a" else LookupError()) from error

    memory.send("orders", b"a")
    memory.send("orders", b"b")
    once = pr.RetryPolicy(max_attempts=1)
    with memory.client().subscriber(
        "orders", "billing", handle, schema=ORDERS, retry_policy=once, concurrency=1
    ):
        memory.join("orders", "billing", timeout=5)
    failures = [pr.DeadLetter.of(dead).failure for dead in memory.dead_letters("orders", "billing")]
    assert [("no JSON", "handler"), ("retries-exhausted", "handler")] == [
        (each.reason, each.stage) for each in failures
    ]


@pytest.mark.parametrize("error", [pulsar.Timeout("away"), ConnectionError("away"), MemoryError()])
@pytest.mark.parametrize("handler", [order, by_value])
def test_a_schema_that_gets_no_answer_is_retried(
    memory: MemoryBroker, handler: Any, error: Exception
) -> None:
    """It says nothing about the payload, also where what came next failed to decode it."""

    class Away(JsonSchema):
        """Asks a registry that does not answer; the second time it does."""

        asked = 0

        def decode_message(self, msg: Any) -> Any:
            self.asked += 1
            if self.asked > 1:
                return super().decode_message(msg)
            try:
                raise error  # noqa: TRY301 - as pulsar-client's Avro schema does
            except Exception:
                return self.decode(b"without the right schema")

    memory.send("orders", b'{"number": 7}')
    with memory.client().subscriber("orders", "billing", handler, schema=Away(Order)) as subscriber:
        memory.join("orders", "billing")
    report = subscriber.result(SOON)
    assert (1, 0, 1) == (report.acknowledged, report.dead_lettered, report.retried)


@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")  # pulsar-client calls it
@pytest.mark.parametrize("error", [pulsar.Timeout("away"), None])
def test_a_worker_process_gets_the_schema_of_the_writer(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Or the error of the broker, which is raised only where somebody needs the schema."""
    schema = LettersSchema(AvroSchema(Order))

    def writer(_topic: str, _version: int) -> Any:
        if error is not None:
            raise error
        return Order.schema()

    monkeypatch.setattr(schema._schema, "_get_writer_schema", writer)
    stored = StoredMessage(
        content=Content(data=b"\x02"),
        message_id=pulsar.MessageId.earliest,
        topic="t",
        published=0,
        producer="p",
        schema_version=3,
    )
    sent = carried(message_of(RawMessage.of(stored), schema))
    parts = pickle.loads(pickle.dumps(sent))
    writers, child = Writers(), AvroSchema(Order)
    child.attach_client(writers)
    writers.written = parts["written"]
    message = restored(parts, LettersSchema(child))
    assert b"\x02" == message.data()
    with pytest.raises(EOFError) as found:
        message.value()
    assert (undecodable(found.value) is None) is (error is not None)


def test_a_pulled_message_too(memory: MemoryBroker) -> None:
    """Its caller hands over the error of the schema."""
    memory.send("orders", b"broken")
    (delivery,) = memory.client().pull("orders", "billing", schema=ORDERS)
    with pytest.raises(json.JSONDecodeError) as found:
        delivery.message.value()
    delivery.nack(error=found.value)
    (dead,) = memory.dead_letters("orders", "billing")
    failure = pr.DeadLetter.of(dead).failure
    assert ("undecodable", "decode") == (failure.reason, failure.stage)


def test_a_wrong_annotation_empties_no_topic(memory: MemoryBroker) -> None:
    """Payloads that cannot be decoded count for the breaker, and are held while it is open."""
    for number in range(100):
        memory.send("orders", b"%d" % number)
    with memory.client().subscriber(
        "orders", "billing", payment, concurrency=1, flow_control=pr.FlowControl(prefetch=1)
    ) as subscriber:
        memory.clock.advance(10)
        assert "degraded" == subscriber.health.state
    assert 20 >= len(memory.dead_letters("orders", "billing"))
    assert not memory.retry_letters("orders", "billing")
