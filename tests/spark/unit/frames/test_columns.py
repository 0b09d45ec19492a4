"""Which columns a frame of failed rows may have."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from pulsar_retry import ConfigError
from pulsar_retry_spark.frames.columns import ALIASES, COLUMNS, Columns, check_schema
from pulsar_retry_spark.options import SinkOptions

READ_BACK = "kind string, message_id string, publish_time timestamp"
BASE = {"service.url": "pulsar://localhost", "topic": "orders", "subscription": "billing"}


def field(column: str) -> SimpleNamespace:
    """Return what is looked at of a `StructField`, given as its name and type."""
    name, kind = column.split(" ", 1)
    data_type = SimpleNamespace(simpleString=lambda: kind)
    if kind.startswith("struct<"):
        inside = kind.removeprefix("struct<").removesuffix(">").split(",")
        data_type.fields = [field(each.replace(":", " ", 1)) for each in inside]
    return SimpleNamespace(name=name, dataType=data_type)


def schema(columns: str) -> SimpleNamespace:
    """Return the same of a `StructType`, which can't be made of text without a Spark."""
    return SimpleNamespace(fields=[field(each) for each in columns.split(", ")])


def check(columns: str) -> Columns:
    """Check columns for a sink that has its topics."""
    return check_schema(schema(columns), SinkOptions.parse(BASE))


@pytest.mark.parametrize(("alias", "ours"), ALIASES.items())
def test_other_systems_names(alias, ours):
    """pulsar-spark's frames can be written as they are; names have no case."""
    kind = COLUMNS[ours][0]
    payload = "" if ours == "payload" else ", PAYLOAD binary"
    assert 0 == check(f"{alias} {kind}{payload}").known[ours]


def test_every_accepted_type_is_accepted():
    """The table is what is checked."""
    kinds = {"struct": "struct<file:string,position:bigint>"}
    for name, accepted in COLUMNS.items():
        for kind in accepted:
            others = [f"{name} {kinds.get(kind, kind)}", "payload binary", *READ_BACK.split(", ")]
            names = {each.split()[0]: each for each in reversed(others)}
            check(", ".join(names.values()))
    check("payload string, key void, headers void, attempt void")  # as `lit(None)` gives them


@pytest.mark.parametrize(
    "column",
    [
        "headers map<string collate UTF8_LCASE,string collate UTF8_LCASE>",
        "rule array<string collate UTF8_LCASE>",
        "reason string collate UTF8_LCASE",
    ],
)
def test_a_collation_makes_no_difference(column):
    """Only comparisons would."""
    assert column.split()[0] in check(f"payload binary, {column}").known


def test_pulsar_sparks_columns_are_the_origin():
    """Never a target; when a message was published first has no place in a letter."""
    columns = check(
        "value string, __key binary, __topic string, __messageId binary, __publishTime timestamp,"
        " __eventTime timestamp, __messageProperties map<string,string>"
    )

    assert {
        "payload": 0,
        "key": 1,
        "origin_topic": 2,
        "origin_message_id": 3,
        "event_time": 5,
        "headers": 6,
    } == columns.known
    assert ("__publishTime",) == columns.ignored
    assert "target_topic" not in columns.known
    own = check("__topic string, Origin_Topic string, payload binary")
    assert ({"origin_topic": 1, "payload": 2}, ("__topic",)) == (own.known, own.ignored)


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("reason string", "no column 'payload': expected one of type binary or string"),
        ("payload string, rason string", "unknown column 'rason': did you mean reason?"),
        ("payload string, value string", "column 'value': expected only one column for payload"),
        ("payload int", "column 'payload' is int: expected binary or string"),
        ("payload string, attempt string", "column 'attempt' is string: expected tinyint or"),
        ("payload string, event_time date", "column 'event_time' is date: expected timestamp or"),
        ("payload string, topic string", "unknown column 'topic': kind, message_id, publish_time"),
        ("payload string, kind string, message_id string", "unknown column 'kind': kind, message"),
        ("payload string, schema_version bigint", "unknown column 'schema_version': kind, mess"),
        ("payload string, source int", "column 'source' is int: expected struct or string"),
        *(
            (
                f"payload string, source struct<file:string,at:{kind}>",
                f"column 'source' is struct<file:string,at:{kind}>: expected a struct of texts, wh",
            )
            for kind in ("double", "decimal(9)", "timestamp", "interval year to month", "binary")
        ),
        ("payload string, not_before timestamp_ntz", "column 'not_before' is timestamp_ntz: expec"),
        ("payload string, headers map<string,int>", "column 'headers' is map<string,int>"),
        ("payload string, rule array<int>", "column 'rule' is array<int>: expected string or"),
    ],
)
def test_what_is_not_acceptable(ddl, message):
    """The error names the column and what is accepted."""
    with pytest.raises(ConfigError) as caught:
        check(ddl)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("payload string", {}, "topic=None: expected topic with subscription"),
        ("payload string, action string", {}, "topic=None: expected topic with subscription"),
        ("payload string", {"dead_letter.topic": "d"}, "retry.topic=None: expected a topic"),
        (
            "payload string",
            {"retry.topic": "r", "max_attempts": "1"},
            "dead_letter.topic=None: expected a topic",
        ),
        (
            f"payload string, topic string, {READ_BACK}",
            {},
            "topic=None: expected topic with subscription",
        ),
        ("payload string, target_topic string", {}, None),
        ("payload string", {"dead_letter.topic": "d", "max_attempts": "1"}, None),
        ("payload string, retryable boolean", {"dead_letter.topic": "d"}, None),
        ("payload string", {"retry.topic": "r"}, None),
    ],
)
def test_rows_that_have_nowhere_to_go(ddl, options, message):
    """Known on the driver: no row can have a topic; else the rows themselves decide."""
    parsed = SinkOptions.parse({"service.url": "pulsar://localhost", **options})
    refused = contextlib.nullcontext() if message is None else pytest.raises(ConfigError)
    with refused as caught:
        check_schema(schema(ddl), parsed)
    assert message is None or str(caught.value).startswith(message)
