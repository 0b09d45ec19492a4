"""Where rows go, when, and with which properties."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import attrs
import pulsar
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import (
    RESERVED_PROPERTIES,
)
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.schemas import TopicSchema
from pulsar_retry_spark.sink.routing import OTHER_REASONS, Router
from pulsar_retry_spark.sink.sink import Task

BASE = {"service.url": "pulsar://localhost", "topic": "orders", "subscription": "billing"}
MAIN = "persistent://public/default/orders"
RETRY, DEAD = f"{MAIN}-billing-RETRY", f"{MAIN}-billing-DLQ"
TASK = {"FAILURE_TASK": "{}", "FAILURE_TIME": "2024-01-01T00:00:00.000Z"}

#: Seconds since 1970, by the router's clock.
NOW = 1_700_000_000.0
NOW_MS = 1_700_000_000_000

MAP = pa.map_(pa.string(), pa.string())

#: What every row has that the source has read.
READ_BACK = {
    "topic": DEAD,
    "kind": "dead_letter",
    "message_id": "1:2:-1",
    "publish_time": pa.array([datetime(2024, 1, 1, tzinfo=UTC)]),
}


#: topic, payload (None for a tombstone), key, properties, event time (ms, or None), delivery time
#: (ms since 1970, or 0 for at once), the most bytes on the wire, ordering key, schema.
Row = tuple[Any, ...]


def rows_of(router: Router, batch: pa.RecordBatch) -> list[Row]:
    """Return the messages for the rows of *batch*, in their order."""
    rows: list[Row] = []
    for messages in router.messages(batch):
        found: dict[int, Row] = {}
        for group in messages.groups:
            for row in group.rows:
                assert row not in found
                payload, key, properties, event_time, ordering_key = messages.values(row)
                time = event_time if event_time is not None and event_time > 0 else None
                due, size = messages.due(row), messages.sizes[row]
                found[row] = (
                    *(group.topic, payload, key, properties, time, due, size),
                    *(ordering_key, group.schema),
                )
        assert sorted(found) == list(range(len(messages)))
        rows += [found[row] for row in sorted(found)]
    return rows


def headed(**texts: str) -> pa.Array:
    """Return the headers of one row."""
    return pa.array([list(texts.items())], MAP)


def router(names: list[str], **options: str) -> Router:
    """Return a router for columns of these names; `__` in an option stands for a dot."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    parsed = SinkOptions.parse(BASE | given)
    columns = Columns.of(names)
    return Router(parsed, columns, parsed.targets, TASK, lambda: NOW)


def route(columns: dict[str, Any], **options: str) -> list[Row]:
    """Return the messages for rows given column by column."""
    batch = pa.record_batch(columns)
    return rows_of(router(batch.schema.names, **options), batch)


def one(options: dict[str, str] | None = None, **row: Any) -> Row:
    """Return the message for one row; values that are no Arrow arrays are made ones."""
    columns = row if "value" in row else {"payload": b"x"} | row
    arrays = {
        name: value if isinstance(value, pa.Array) else pa.array([value])
        for name, value in columns.items()
    }
    (message,) = route(arrays, **(options or {}))
    return message


def properties(options: dict[str, str] | None = None, **row: Any) -> dict[str, str]:
    """Return the properties of the message for one row."""
    return one(options, **row)[3]


# --- Where ---------------------------------------------------------------------------------------


@given(
    action=st.sampled_from([None, "retry", "dead_letter"]),
    retryable=st.sampled_from([None, True, False]),
    attempt=st.none() | st.integers(0, 2**31 - 1),
    max_attempts=st.integers(1, 40),
)
def test_the_decision(action, retryable, attempt, max_attempts):
    """An action wins, then retryable, then the attempt; a missing attempt is the first."""
    topic = one(
        {"max_attempts": str(max_attempts)},
        action=pa.array([action], pa.string()),
        retryable=pa.array([retryable], pa.bool_()),
        attempt=pa.array([attempt], pa.int64()),
    )[0]
    if action is None:
        more = (1 if attempt is None else attempt) < max_attempts
        action = "retry" if more and retryable is not False else "dead_letter"
    assert {"retry": RETRY, "dead_letter": DEAD}[action] == topic


def test_rows_of_one_producer_keep_their_order():
    """Those that can share a batch; and those with a delay, or in chunks, which are sent alone."""
    payloads = [b"x" * size for size in (1, 3000, 1, 3000, 3000)]
    batch = pa.record_batch({"payload": payloads, "delay_ms": [0, 0, 5, 5, 0]})
    limits = {"max_message_bytes": "3000", "oversize": "chunk"}
    (made,) = router(batch.schema.names, **limits).messages(batch)
    groups = {(each.topic, each.alone): list(each.rows) for each in made.groups}
    assert {(RETRY, False): [0], (RETRY, True): [1, 2, 3, 4]} == groups


def test_a_topic_of_the_rows_own_wins():
    """By its full name; the properties are as for the decision, without a retry topic."""
    message = one(target_topic="public/other/t", attempt=2)
    assert "persistent://public/other/t" == message[0]
    assert "2" == message[3]["RECONSUMETIMES"]
    assert "RETRY_TOPIC" not in message[3]
    assert 0 == message[5]


#: A row as pulsar-spark reads it.
PULSAR_SPARK = {
    "value": b"x",
    "__key": b"k",
    "__topic": "persistent://a/b/live-partition-3",
    "__messageId": pulsar.MessageId(3, 7, 8, -1).serialize(),
    "__publishTime": pa.array([datetime(2024, 1, 1, tzinfo=UTC)]),
    "__messageProperties": headed(colour="red"),
}


@pytest.mark.parametrize(("action", "topic"), [("retry", RETRY), ("dead_letter", DEAD)])
def test_a_row_never_goes_back_to_where_it_was_read(action, topic):
    """The topic that a source names is the live one: the letters' topics are the options'."""
    assert topic == one(**PULSAR_SPARK, action=action)[0]
    assert "persistent://public/other/t" == one(**PULSAR_SPARK, target_topic="public/other/t")[0]


def test_pulsar_sparks_columns_say_where_a_row_came_from():
    """As a consumer's letter says it: logical topic, and the id as Java prints it."""
    said = properties(**PULSAR_SPARK)

    assert "persistent://a/b/live" == said["REAL_TOPIC"]
    assert "7:8:3" == said["ORIGIN_MESSAGE_ID"] == said["ORIGIN_MESSAGE_IDY_TIME"]
    assert "red" == said["colour"]
    assert "ORIGIN_MESSAGE_ID" not in properties(**(PULSAR_SPARK | {"__messageId": b"\xff"}))


def test_the_letter_that_a_row_was_knows_better_where_it_came_from():
    """The origin of a letter that pulsar-spark has read is the first message, not the letter."""
    letter = headed(REAL_TOPIC="persistent://a/b/first", ORIGIN_MESSAGE_ID="1:1:-1")

    said = properties(**(PULSAR_SPARK | {"__topic": RETRY, "__messageProperties": letter}))

    assert ("persistent://a/b/first", "1:1:-1") == (said["REAL_TOPIC"], said["ORIGIN_MESSAGE_ID"])
    said = properties(headers=letter, origin_topic="persistent://a/b/mine")
    assert "persistent://a/b/mine" == said["REAL_TOPIC"]


def test_what_a_letter_of_another_subscription_says_is_not_believed():
    """Its properties were copied to a message: it is of this subscription, and was not tried."""
    copied = headed(REAL_TOPIC="first", REAL_SUBSCRIPTION="s1", RECONSUMETIMES="5", shop="7")

    said = properties(**(PULSAR_SPARK | {"__messageProperties": copied}))

    names = ("REAL_SUBSCRIPTION", "RECONSUMETIMES", "shop", "ORIGIN_MESSAGE_ID")
    assert ("billing", "1", "7", "7:8:3") == tuple(said[each] for each in names)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"action": "discard"}, "BAD_ROW] a row has action='discard': expected retry, dead_letter"),
        ({"attempt": -1}, "BAD_ROW] a row has attempt=-1: expected 0, or the number"),
        ({"delay_ms": -1}, "BAD_ROW] a row has delay_ms=-1: expected 0 to 864000000, in milli"),
        ({"delay_ms": 864_000_001}, "BAD_ROW] a row has delay_ms=864000001"),
        (
            {"not_before": pa.array([4_000_000_000], pa.timestamp("s", "UTC"))},
            "BAD_ROW] a row has not_before='2096-10-02 07:06:40.000Z': expected at most 864000 s",
        ),
        (
            {"not_before": pa.array([327_403_382_400], pa.timestamp("s", "UTC"))},
            "BAD_ROW] a row has not_before='12345-01-01 00:00:00.000Z': expected at most 864000 s",
        ),
        *(
            ({"target_topic": name}, f"BAD_ROW] a row has target_topic='{name}': expected a persis")
            for name in ("a/b", "non-persistent://a/b/c")
        ),
    ],
)
def test_rows_that_make_no_sense(row, message):
    """The task fails, with the column and its value first."""
    with pytest.raises(PulsarFailuresError) as caught:
        one(**row)
    assert str(caught.value).startswith(f"[PULSAR_SINK_{message}")


@pytest.mark.parametrize("row", [{"attempt": -1}, {"delay_ms": -1}, {"payload": b"x" * 9000}])
def test_an_error_names_its_row(row):
    """By its key, its origin and its id, so that somebody finds it; never by its payload."""
    told = {"key": "k7", "dedupe_id": "d7", "source": '{"file":"a.csv"}'}
    with pytest.raises(PulsarFailuresError) as caught:
        one({"max_message_bytes": "5000"}, **(told | row))
    assert "the row has key='k7', source='{\"file\":\"a.csv\"}', dedupe_id='d7'" in str(
        caught.value
    )
    assert "xxx" not in str(caught.value)


def test_rows_of_many_kinds():
    """However many topics and names of headers there are, each row has its own."""
    count = 300
    heads = [[(f"name-{n}", str(n))] for n in range(count)]
    rows = route(
        {
            "payload": [b"%d" % n for n in range(count)],
            "target_topic": [f"t{n}" for n in range(count)],
            "headers": pa.array(heads, MAP),
        }
    )
    assert [(f"persistent://public/default/t{n}", b"%d" % n, str(n)) for n in range(count)] == [
        (row[0], row[1], row[3][f"name-{n}"]) for n, row in enumerate(rows)
    ]
    assert all(f"name-{n}" not in rows[n + 1][3] for n in range(count - 1))


@pytest.mark.parametrize(("are_equal", "batches"), [(True, 1), (False, 4)])
def test_a_batch_is_parted_if_its_headers_differ(are_equal, batches):
    """Not because there are many: a column for each of them is what they need."""
    heads = [[(f"{0 if are_equal else n}-{m}", "x") for m in range(40)] for n in range(64)]
    batch = pa.record_batch({"payload": [b""] * 64, "headers": pa.array(heads, MAP)})
    found = list(router(batch.schema.names).messages(batch))
    assert batches <= len(found) <= 8 * batches
    assert 64 == sum(len(each) for each in found)


@pytest.mark.parametrize(
    ("row", "topic", "message"),
    [
        ({"retryable": True}, "dead_letter.topic", r"NO_TARGET.* there is no retry\.topic"),
        ({"action": "retry", "count": "5"}, "retry.topic", "TOO_MANY_REDRIVES"),
        ({"action": "retry", "count": "4"}, "retry.topic", None),
    ],
)
def test_topics_that_are_named_one_by_one(row, topic, message):
    """A missing one is an error of the row that needs it; letters keep their subscription."""
    row = dict(row)
    carried = headed(REAL_SUBSCRIPTION="s", REDRIVE_COUNT=row.pop("count", "0"))
    batch = pa.record_batch(
        {"payload": [b"x"], "headers": carried, **{k: [v] for k, v in row.items()}}
    )
    options = SinkOptions.parse({"service.url": "pulsar://x", topic: "t"})
    columns = Columns.of(batch.schema.names)
    under_test = Router(options, columns, options.targets, TASK, lambda: NOW)
    if message is None:
        rows = rows_of(under_test, batch)
        assert ["s"] == [each[3]["REAL_SUBSCRIPTION"] for each in rows]
    else:
        with pytest.raises(PulsarFailuresError, match=message):
            rows_of(under_test, batch)


# --- When ----------------------------------------------------------------------------------------

LATER = pa.array([NOW_MS * 1000 + 9_000_000], pa.timestamp("us", "UTC"))
DEAD_LETTER = {"action": "dead_letter"}


@pytest.mark.parametrize(
    ("options", "row", "due", "delay"),
    [
        # By the level of the attempt, as for a letter of the consumer; or by options.
        ({}, {}, NOW_MS + 1000, 1000),
        ({}, {"attempt": 2}, NOW_MS + 5000, 5000),
        ({"delay.levels": "100ms 3s"}, {"attempt": 2}, NOW_MS + 3000, 3000),
        # Attempt 0 starts anew, and has no failure to wait after.
        ({"delay.levels": "5s"}, {"attempt": 0}, 0, 0),
        # The row's own: in milliseconds, or the time at which it is due, which wins.
        ({}, {"delay_ms": 250}, NOW_MS + 250, 250),
        ({}, {"delay_ms": 0}, 0, 0),
        ({}, {"not_before": LATER, "delay_ms": 5}, NOW_MS + 9000, 9000),
        # A time that is over is no delay, but whether a row has one does not depend on the clock.
        ({}, {"not_before": pa.array([0], pa.timestamp("ms"))}, 1, 0),
        ({}, {"not_before": pa.array([5], pa.timestamp("ms"))}, 5, 0),
        # A dead letter says its delay, as the consumer's, and has none.
        ({}, DEAD_LETTER, 0, 1000),
        ({}, DEAD_LETTER | {"delay_ms": 250}, 0, 250),
        # The levels are the retry topic's.
        ({}, {"target_topic": "t", "attempt": 2, "delay_ms": 7}, NOW_MS + 7, 7),
    ],
)
def test_when_a_row_is_due(options, row, due, delay):
    """At the time that the broker is told, after the delay that the letter says."""
    message = one(options, **row)
    assert (due, str(delay)) == (message[5], message[3]["DELAY_TIME"])


# --- With what -----------------------------------------------------------------------------------


def test_a_retry_letter():
    """All that a row can say, on the wire; nothing else."""
    message = one(
        reason="CAST_INVALID_INPUT",
        error="NumberFormatException",
        details="12x",
        stage="parse",
        rule=pa.array([["amount", "date"]]),
        attempt=3,
        origin_topic="persistent://a/b/c-partition-2",
        origin_message_id="1:2:-1",
        source=pa.array([{"file": "a.csv", "line": 7, "rest": None}]),
        headers=pa.array([[("colour", "red")]], MAP),
        dedupe_id="d",
        key="k",
        event_time=pa.array([5_000_000], pa.timestamp("us", "Europe/Berlin")),
    )
    assert {
        "REAL_TOPIC": "persistent://a/b/c",
        "REAL_SUBSCRIPTION": "billing",
        "RETRY_TOPIC": RETRY,
        "ORIGIN_MESSAGE_ID": "1:2:-1",
        "ORIGIN_MESSAGE_IDY_TIME": "1:2:-1",
        "RECONSUMETIMES": "3",
        "DELAY_TIME": "10000",
        "FAILURE_REASON": "CAST_INVALID_INPUT",
        "FAILURE_ERROR": "NumberFormatException",
        "FAILURE_MESSAGE": "12x",
        "FAILURE_STAGE": "parse",
        "FAILURE_RULE": "amount,date",
        "FAILURE_SOURCE": '{"file":"a.csv","line":7}',
        "DEDUPE_ID": "d",
        "colour": "red",
        **TASK,
    } == message[3]
    assert (b"x", "k", 5000) == (message[1], message[2], message[4])
    assert "RETRY_TOPIC" not in properties(action="dead_letter")


@pytest.mark.parametrize(
    ("options", "row", "level"),
    [
        ({}, {"attempt": 2}, "2"),
        ({}, {"attempt": 99}, "18"),
        ({}, {"attempt": 2, "delay_ms": 5}, "-1"),
    ],
)
def test_tdmqs_level(options, row, level):
    """Its dialects write it, -1 for a delay of the row's own."""
    assert level == properties({"naming": "tdmq-2.9.2"} | options, **row)["DELAY"]
    assert "DELAY" not in properties(options, **row)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
contents = st.text(st.characters(codec="utf-8"), max_size=50)


@given(st.dictionaries(names | st.sampled_from(sorted(RESERVED_PROPERTIES)), contents))
def test_headers_are_kept_and_never_win_over_columns(headers):
    """They may replace defaults, such as the origin that an earlier hop has written.

    What they say of a letter of another subscription was copied, and is not kept.
    """
    said = properties(
        headers=pa.array([list(headers.items())], MAP),
        attempt=4,
        reason="r",
        dedupe_id="d",
        origin_message_id="1:2:3",
        delay_ms=8,
    )
    columns = {
        "RECONSUMETIMES": "4",
        "FAILURE_REASON": "r",
        "DEDUPE_ID": "d",
        "ORIGIN_MESSAGE_ID": "1:2:3",
        "ORIGIN_MESSAGE_IDY_TIME": "1:2:3",
        "DELAY_TIME": "8",
        **TASK,
    }
    defaults = {"REAL_TOPIC": MAIN, "REAL_SUBSCRIPTION": "billing", "RETRY_TOPIC": RETRY}
    own = Recipient.of([MAIN], "billing", RETRY).own(headers, MAIN)
    assert defaults | own | columns | {name: "-1" for name in headers if name == "DELAY"} == said


def test_an_attempt_that_only_headers_count():
    """A row that came by another connector has been tried as often as its message says."""
    headers = pa.array([[("RECONSUMETIMES", "3")]], MAP)
    assert "4" == properties(headers=headers)["RECONSUMETIMES"]
    assert "1" == properties(headers=headers, attempt=1)["RECONSUMETIMES"]


@pytest.mark.parametrize("count", ["2147483647", "9" * 30])
def test_a_count_in_headers_has_a_largest_value(count):
    """Such a row is a dead letter like others: a header does not fail the job each time."""
    topic, *_ = one(headers=headed(RECONSUMETIMES=count))
    assert topic == DEAD
    assert "2147483647" == properties(headers=headed(RECONSUMETIMES=count))["RECONSUMETIMES"]


# --- Payload, key, time --------------------------------------------------------------------------


def not_utf8(value: bytes) -> pa.Array:
    """Return a column of strings as Spark may give one: `cast(binary as string)` checks nothing."""
    offsets = pa.array([0, len(value)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(value)])


def test_texts_that_are_no_utf8_get_a_mark():
    """A property that is no UTF-8 would end whoever reads it; a payload is not changed."""
    broken = not_utf8(b"a\xffb")
    said = properties(reason=broken, stage=broken, key=broken)
    assert {"a�b"} == {said["FAILURE_REASON"], said["FAILURE_STAGE"]}
    nested = {
        "rule": pa.ListArray.from_arrays([0, 1], broken),
        "source": pa.StructArray.from_arrays([broken, pa.array([7])], ["file", "line"]),
    }
    said = properties(**nested)
    assert "a�b" == said["FAILURE_RULE"]
    assert '{"file":"a�b","line":7}' == said["FAILURE_SOURCE"]
    assert b"a\xffb" == one(payload=broken)[1] == one(payload=b"a\xffb")[1]


def test_ordering_keys_are_bytes():
    """They are that on the wire, so any are kept; they count in the size, and tell no row."""
    assert b"\x00\xff" == one(ordering_key=b"\x00\xff")[7]
    assert "ö".encode() == one(ordering_key="ö")[7]
    assert one()[7] is one(ordering_key=pa.nulls(1))[7] is None
    assert one()[6] + 5 == one(ordering_key="12345")[6]
    assert properties()["DEDUPE_ID"] == properties(ordering_key="o")["DEDUPE_ID"]


@pytest.mark.parametrize(
    ("time", "millis"),
    [
        (pa.array([1_700_000_000_123], pa.int64()), 1_700_000_000_123),
        (pa.array([1_700_000_000_123_999], pa.timestamp("us", "UTC")), 1_700_000_000_123),
        (pa.array([1_700_000_000_123_999], pa.timestamp("us", "Asia/Tokyo")), 1_700_000_000_123),
        (pa.array([1_700_000_000_123_999], pa.timestamp("us")), 1_700_000_000_123),
        (pa.array([1_700_000_000], pa.timestamp("s")), 1_700_000_000_000),
        (pa.array([-1], pa.timestamp("us", "UTC")), None),
        (pa.array([0], pa.int64()), None),
        (pa.array([None], pa.int64()), None),
    ],
)
def test_event_times_are_milliseconds(time, millis):
    """Not Spark's microseconds, which pulsar-spark sends. None where Pulsar has none."""
    assert millis == one(event_time=time)[4]


# --- Identity ------------------------------------------------------------------------------------

text = st.none() | st.text(st.characters(codec="utf-8"), max_size=8)


@given(payload=st.none() | st.binary(max_size=8), key=text, reason=text, stage=text)
def test_equal_rows_have_equal_ids(payload, key, reason, stage):
    """On each attempt, and in whatever company."""
    columns = {
        "payload": pa.array([payload, b"other"], pa.binary()),
        "key": pa.array([key, "other"], pa.string()),
        "reason": pa.array([reason, "other"], pa.string()),
        "stage": pa.array([stage, None], pa.string()),
    }
    together = [message[3]["DEDUPE_ID"] for message in route(columns)]
    alone = route({name: column[:1] for name, column in columns.items()})[0][3]["DEDUPE_ID"]
    assert together[0] == alone
    assert (together[0] != together[1]) == (
        (payload, key, reason, stage) != (b"other", "other", "other", None)
    )


def test_an_id_of_the_rows_own_is_kept():
    """A null one is replaced; where the message id is known, it tells, whatever the payload is."""
    ids = [m[3]["DEDUPE_ID"] for m in route({"payload": [b"", b""], "dedupe_id": ["mine", None]})]
    assert "mine" == ids[0]
    assert 32 == len(ids[1])
    known = [properties(payload=each, origin_message_id="1:2:-1") for each in (b"a", b"b")]
    assert 1 == len({each["DEDUPE_ID"] for each in known})
    parts = ("payload", "key", "reason", "stage", "origin_topic", "origin_message_id", "source")
    others = [properties(**{part: "{}"}) for part in parts]
    assert len(parts) == len({each["DEDUPE_ID"] for each in others} - {properties()["DEDUPE_ID"]})


def test_an_id_in_the_headers_is_an_older_failures():
    """It is not taken over."""
    assert "old" != properties(headers=pa.array([[("DEDUPE_ID", "old")]], MAP))["DEDUPE_ID"]


# --- Size ----------------------------------------------------------------------------------------


@given(
    payload=st.none() | st.binary(max_size=200),
    key=text,
    reason=text,
    headers=st.none() | st.dictionaries(names, contents, max_size=3),
)
def test_the_size_is_never_too_small(payload, key, reason, headers):
    """A batch that the broker refuses would fail the task each time."""
    message = one(
        payload=pa.array([payload], pa.binary()),
        key=pa.array([key], pa.string()),
        reason=pa.array([reason], pa.string()),
        headers=pa.array([headers and list(headers.items())], MAP),
    )
    texts = [*message[3], *message[3].values(), key or ""]
    assert message[6] >= len(payload or b"") + sum(len(each.encode()) + 4 for each in texts)


def test_the_size_is_the_same_for_each_attempt():
    """Whatever is in the properties that name the task."""
    sizes = set()
    for number in (1, 10**9):
        task = Task(number, number, "app", str(number), "query", number).properties()
        options = SinkOptions.parse(BASE)
        columns = Columns.of(["payload"])
        under_test = Router(options, columns, options.targets, task, lambda: NOW)
        sizes |= {row[6] for row in rows_of(under_test, pa.record_batch({"payload": [b"x"]}))}
    assert 1 == len(sizes)


def test_too_big_fails():
    """The error says how big, how big it may be, and what else can be done."""
    with pytest.raises(
        PulsarFailuresError, match=r"OVERSIZE\] a row takes 11[0-9]{3} bytes, 10000 of"
    ):
        one({"max_message_bytes": "5000"}, payload=b"x" * 10_000)


def test_long_texts_are_cut():
    """A traceback of a megabyte does not travel."""
    assert 4096 == len(properties(details="ä" * 100_000)["FAILURE_MESSAGE"])


@pytest.mark.parametrize(
    "details",
    [
        [{"rule": "a", "expression": "x" * 10_000}],
        [{"rule": f"rule-{n}", "expression": "x" * 100} for n in range(100)],
        {str(n): [n] * 9 for n in range(1000)},
    ],
)
def test_details_that_are_cut_are_still_json(details):
    """What is left says what failed."""
    text = properties(details=json.dumps(details))["FAILURE_MESSAGE"]
    assert 1000 < len(text) <= 4096
    left = json.loads(text)
    assert type(details) is type(left)
    if isinstance(details, list):
        assert [each["rule"] for each in left] == [each["rule"] for each in details[: len(left)]]


# --- Redrive -------------------------------------------------------------------------------------


def test_a_redrive_is_counted():
    """In the message, so that it does not go round for ever."""
    back = READ_BACK | {"action": "retry", "attempt": 0}
    carried = properties(**back)
    assert "1" == carried["REDRIVE_COUNT"]
    assert "0" == carried["RECONSUMETIMES"]
    assert "5" == properties(headers=headed(REDRIVE_COUNT="4"), **back)["REDRIVE_COUNT"]


@pytest.mark.parametrize("row", [{"action": "retry"}, {"attempt": 0}])
def test_a_redrive_is_counted_though_the_frame_has_lost_its_columns(row):
    """What was counted before tells that it was read back."""
    carried = properties(headers=headed(REDRIVE_COUNT="1", REDRIVE_ID="nightly"), **row)
    assert "2" == carried["REDRIVE_COUNT"]
    assert "REDRIVE_ID" not in carried


def test_a_redrive_gives_a_row_another_id():
    """If it dies again, that is no duplicate of its first death; each attempt gives the same."""
    back = READ_BACK | {"action": "retry", "dedupe_id": "d1"}
    first = properties(**back)["DEDUPE_ID"]
    assert first == properties(**back)["DEDUPE_ID"] != "d1"
    second = properties(**back | {"dedupe_id": first}, headers=headed(REDRIVE_COUNT="1"))
    assert second["DEDUPE_ID"] not in {first, "d1"}
    over = properties(**back, headers=headed(REDRIVE_COUNT="5"))
    assert "d1" == over["DEDUPE_ID"]


def test_one_redrive_too_many_is_a_dead_letter():
    """The loop has an end, and no row of it stops the others."""
    batch = pa.record_batch(
        {
            "payload": [b"a", b"b"],
            "action": ["retry"] * 2,
            "attempt": [0, 0],
            "reason": ["bad", "bad"],
            "headers": pa.array([[("REDRIVE_COUNT", "5")], [("REDRIVE_COUNT", "4")]], MAP),
        }
    )
    under_test = router(batch.schema.names)
    over, last = rows_of(under_test, batch)
    assert [(DEAD, "5", "bad", 0), (RETRY, "5", "bad", 0)] == [
        (row[0], row[3]["REDRIVE_COUNT"], row[3]["FAILURE_REASON"], row[5]) for row in (over, last)
    ]
    assert "RETRY_TOPIC" not in over[3]
    assert 1 == under_test.over_redriven
    assert {"retry": 1, "dead_letter": 1} == {
        each.action: each.rows for each in under_test.routes.values() if each.rows
    }


def test_only_redrives_are_counted():
    """A dead letter stays one, a row that was not read back is new, a retry is none."""
    assert "REDRIVE_COUNT" not in properties(**READ_BACK, action="dead_letter")
    assert "REDRIVE_COUNT" not in properties(action="retry")
    once = headed(REDRIVE_COUNT="1")
    assert "1" == properties(headers=once, attempt=2)["REDRIVE_COUNT"]


def test_a_redrive_leaves_behind_what_is_no_longer_so():
    """Where it was to be retried, and whose it was."""
    old = headed(RETRY_TOPIC="old", REAL_SUBSCRIPTION="old", shop="7")
    carried = properties(headers=old, action="retry", **READ_BACK)
    assert (RETRY, "billing", "7") == (
        carried["RETRY_TOPIC"],
        carried["REAL_SUBSCRIPTION"],
        carried["shop"],
    )
    kept = properties(headers=old, action="dead_letter", **READ_BACK)
    assert "billing" == kept["REAL_SUBSCRIPTION"]


# --- Counts --------------------------------------------------------------------------------------


def test_what_is_counted():
    """Rows by reason and by route, bytes of payloads."""
    batch = pa.record_batch(
        {"payload": [b"ab", None, b"c"], "reason": ["x", None, "x"], "attempt": [1, 1, 99]}
    )
    under_test = router(batch.schema.names)
    rows_of(under_test, batch)
    assert {"x": 2, "": 1} == under_test.reasons
    assert 3 == under_test.payload_bytes
    assert [(RETRY, "retry", 2), (DEAD, "dead_letter", 1)] == [
        (each.topic, each.action, each.rows) for each in under_test.routes.values()
    ]


def test_reasons_that_never_repeat_do_not_fill_the_memory():
    """A thousand are counted one by one, the others together."""
    batch = pa.record_batch({"payload": [b""] * 5000, "reason": [f"r{n}" for n in range(5000)]})
    under_test = router(batch.schema.names)
    rows_of(under_test, batch)
    assert 1001 == len(under_test.reasons)
    assert 4000 == under_test.reasons[OTHER_REASONS]


READ_SCHEMAS = [TopicSchema("AVRO", "0"), TopicSchema("AVRO", "1")]
KEY_VALUE = TopicSchema("KEY_VALUE", "{}")
LATEST = TopicSchema(
    "JSON", json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]})
)


def schemas_of(columns: dict[str, Any]) -> list[Row]:
    """Return the messages for rows of a sink that knows the topic's latest schema."""
    batch = pa.record_batch(columns)
    parsed = attrs.evolve(SinkOptions.parse(BASE), schema=LATEST)
    found = Columns.of(batch.schema.names)
    versions = {(DEAD, 0): READ_SCHEMAS[0], (DEAD, 1): READ_SCHEMAS[1], (DEAD, 2): KEY_VALUE}
    lookup = Router(
        parsed, found, parsed.targets, TASK, lambda: NOW, versions=lambda *key: versions.get(key)
    )
    return rows_of(lookup, batch)


def read_back(payload: pa.Array, versions: list[int | None]) -> dict[str, Any]:
    """Return rows that the source has read, with the versions of their schemas."""
    columns = {
        name: pa.concat_arrays([value if isinstance(value, pa.Array) else pa.array([value])] * 2)
        for name, value in READ_BACK.items()
    }
    return columns | {"payload": payload, "schema_version": pa.array(versions, pa.int64())}


def test_rows_keep_the_schema_that_they_were_read_with():
    """Others have the topic's."""
    rows = schemas_of(read_back(pa.array([b"a", b"b"]), [1, None]))
    assert [(b"a", READ_SCHEMAS[1]), (b"b", LATEST)] == [(row[1], row[8]) for row in rows]
    assert [LATEST] == [row[8] for row in schemas_of({"payload": pa.array([b"a"])})]
    assert one()[8] is None


@pytest.mark.parametrize("version", [7, 2], ids=["gone", "a key with a value"])
def test_a_schema_that_cannot_be_had_is_an_error(version):
    """With a way out."""
    with pytest.raises(PulsarFailuresError, match=r"NO_SCHEMA\] .*leave the column schema_version"):
        schemas_of(read_back(pa.array([b"a", b"b"]), [version, 0]))
