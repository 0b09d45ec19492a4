"""Which columns a frame of failed rows may have."""

from __future__ import annotations

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
    return SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda: kind))


def schema(columns: str) -> SimpleNamespace:
    """Return the same of a `StructType`, which can't be made of text without a Spark."""
    return SimpleNamespace(fields=[field(each) for each in columns.split(", ")])


def check(columns: str, **options: str) -> Columns:
    """Check columns, with options in which `__` stands for a dot."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    return check_schema(schema(columns), SinkOptions.parse(BASE | given))


def test_names_have_no_case():
    """As everywhere in Spark."""
    assert {"payload": 0, "dedupe_id": 1} == check("PAYLOAD string, Dedupe_ID string").known


@pytest.mark.parametrize(("alias", "ours"), ALIASES.items())
def test_other_systems_names(alias, ours):
    """Kafka's and pulsar-spark's frames can be written as they are."""
    kind = COLUMNS[ours][0]
    payload = "" if ours == "payload" else ", payload binary"
    assert 0 == check(f"{alias} {kind}{payload}").known[ours]


def test_every_accepted_type_is_accepted():
    """The table is what is checked."""
    kinds = {"struct": "struct<file:string,position:bigint>"}
    for name, accepted in COLUMNS.items():
        for kind in accepted:
            others = [f"{name} {kinds.get(kind, kind)}", "payload binary", *READ_BACK.split(", ")]
            names = {each.split()[0]: each for each in reversed(others)}
            check(", ".join(names.values()))


@pytest.mark.parametrize(
    "column",
    [
        "headers map<string collate UTF8_LCASE,string collate UTF8_LCASE>",
        "headers array<struct<key:string collate UNICODE_CI_AI,value:binary>>",
        "rule array<string collate UTF8_LCASE>",
        "reason string collate UTF8_LCASE",
    ],
)
def test_a_collation_makes_no_difference(column):
    """Only comparisons would."""
    assert column.split()[0] in check(f"payload binary, {column}").known


def test_a_null_of_no_type_fits_everywhere():
    """As `lit(None)` gives one."""
    check("payload string, key void, headers void, attempt void")


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
    assert not columns.has_targets


def test_kafkas_columns_are_the_origin():
    """By default, too; only Spark's Kafka source gives all three."""
    columns = check(
        "key binary, value binary, topic string, partition int, offset bigint,"
        " timestamp timestamp, timestampType int"
    )

    assert {"key", "payload", "topic", "partition", "offset", "event_time"} == set(columns.known)
    assert ("timestampType",) == columns.ignored
    assert columns.kafkas
    assert not columns.has_targets


def test_a_topic_alone_is_the_origin():
    """As of a frame that was read from Kafka, of which somebody has selected two columns."""
    columns = check("topic string, value binary")

    assert {"origin_topic": 0, "payload": 1} == columns.known
    assert not columns.has_targets


@pytest.mark.parametrize("ours", ["origin_topic", "event_time", "source"])
def test_what_somebody_says_wins_over_the_source(ours):
    """A column of our name is no accident."""
    frame = "value binary, topic string, partition int, offset bigint, timestamp timestamp"
    own = {"source": "source struct<file:string>", "event_time": "event_time timestamp"}
    columns = check(f"{own.get(ours, f'{ours} string')}, {frame}")

    assert 0 == columns.known[ours]
    assert columns.kafkas is (ours != "source")


@pytest.mark.parametrize("column", ["partition int", "offset bigint", "timestamp timestamp"])
def test_kafkas_names_alone_are_unknown(column):
    """They are columns of ours only where all of Kafka's coordinates are there."""
    with pytest.raises(ConfigError, match=f"unknown column '{column.split()[0]}'"):
        check(f"payload binary, {column}")


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("reason string", "no column 'payload': expected one of type binary or string"),
        ("payload string, rason string", "unknown column 'rason': did you mean reason?"),
        ("payload string, value string", "column 'value': expected only one column for payload"),
        ("payload int", "column 'payload' is int: expected binary or string"),
        ("payload string, attempt string", "column 'attempt' is string: expected tinyint or"),
        ("payload string, event_time date", "column 'event_time' is date: expected timestamp or"),
        ("payload string, source int", "column 'source' is int: expected struct or string"),
        ("payload string, headers map<string,int>", "column 'headers' is map<string,int>"),
        ("payload string, rule array<int>", "column 'rule' is array<int>: expected string or"),
    ],
)
def test_what_is_not_acceptable(ddl, message):
    """The error names the column and what is accepted."""
    with pytest.raises(ConfigError) as caught:
        check(ddl)
    assert str(caught.value).startswith(message)


def test_further_columns_can_be_taken_along():
    """As properties, or together as JSON."""
    assert {"city": 1} == check("payload string, city string", extra="properties").extra
    assert {"at": 1} == check("payload string, at struct<a:int>", extra="json").extra


@pytest.mark.parametrize("name", READ_BACK.split(", "))
def test_a_column_of_a_users_own_is_not_read_back(name):
    """Only together are they what the source adds; one alone is data, and `topic` the origin."""
    ddl = f"payload string, {name}, topic string"
    with pytest.raises(ConfigError, match=f"unknown column '{name.split()[0]}'.* only together"):
        check(ddl)
    columns = check(ddl, extra="properties")
    assert {name.split()[0]: 1} == columns.extra
    assert 2 == columns.known["origin_topic"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("at struct<a:int>", "column 'at' is struct<a:int>: expected a plain value"),
        ("FAILURE_TASK string", "column 'FAILURE_TASK': expected another name"),
        ("REAL_TOPIC string", "column 'REAL_TOPIC': expected another name"),
    ],
)
def test_what_is_no_property(column, message):
    """Nested values have no text of their own, and the system's names are the system's."""
    with pytest.raises(ConfigError) as caught:
        check(f"payload string, {column}", extra="properties")
    assert str(caught.value).startswith(message)


def no_topic(**options: str) -> SinkOptions:
    """Return options without topics but those given."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    return SinkOptions.parse({"service.url": "pulsar://localhost", **given})


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
    ],
)
def test_rows_that_have_nowhere_to_go(ddl, options, message):
    """Known on the driver: no row can have a topic."""
    with pytest.raises(ConfigError) as caught:
        check_schema(schema(ddl), no_topic(**options))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("ddl", "options"),
    [
        ("payload string, target_topic string", {}),
        ("payload string", {"dead_letter.topic": "d", "max_attempts": "1"}),
        ("payload string, retryable boolean", {"dead_letter.topic": "d"}),
        ("payload string", {"retry.topic": "r"}),
    ],
)
def test_rows_that_may_have_somewhere_to_go(ddl, options):
    """The rows themselves decide."""
    check_schema(schema(ddl), no_topic(**options))


def test_what_was_read_back_names_no_target():
    """Then `topic` is where the row was read."""
    columns = check(f"payload binary, topic string, {READ_BACK}")
    assert columns.read_back
    assert not columns.has_targets
    assert check("payload binary, target_topic string").has_targets


def test_the_version_of_a_schema_is_that_of_a_row_that_was_read():
    """Alone it is a column of a user's own."""
    names = ["payload", "topic", "kind", "message_id", "publish_time", "schema_version"]
    assert Columns.of(names, extra=False).has_schemas
    assert not Columns.of(names[:-1], extra=False).has_schemas
    with pytest.raises(ConfigError, match="unknown column 'schema_version'"):
        Columns.of(["payload", "schema_version"], extra=False)
    assert {"schema_version": 1} == Columns.of(["payload", "schema_version"], extra=True).extra
