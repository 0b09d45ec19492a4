"""Rows for the sink: `failures`."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from pulsar_retry import ConfigError
from pulsar_retry_spark import cast_failed, failures, split, write_failures
from pulsar_retry_spark.frames.columns import check_schema
from pulsar_retry_spark.options import SinkOptions

OPTIONS = {"service.url": "pulsar://broker", "topic": "orders", "subscription": "billing"}


@pytest.fixture
def orders(spark):
    """Give two rows."""
    return spark.sql("select * from values (1, -5), (2, null) as orders(id, amount)")


def test_the_payload_is_the_row_as_json(orders):
    """Also what is null, for a reader that knows the columns; and in the columns' order."""
    rows = failures(orders, reason="late").collect()

    assert ['{"id":1,"amount":-5}', '{"id":2,"amount":null}'] == [row.payload for row in rows]


def test_no_setting_of_the_session_changes_the_json(spark):
    """The same row is the same payload in each session, and times keep their microseconds."""
    frame = spark.sql("select timestamp'2024-03-31 01:00:00.123456Z' as at, 1 as id, null as no")
    settings = {
        "spark.sql.session.timeZone": "Asia/Shanghai",
        "spark.sql.jsonGenerator.ignoreNullFields": "true",
    }
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        payload = failures(frame, reason="late").first().payload
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)

    assert '{"at":"2024-03-31T01:00:00.123456Z","id":1,"no":null}' == payload


@pytest.fixture(params=["Asia/Shanghai", "America/New_York"])
def zone(spark, request):
    """Run in a session with another time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def test_times_without_a_zone_are_those_of_the_session(spark, zone):
    """As Spark's own cast reads them: so a row is neither due too early nor too late."""
    frame = spark.sql("select timestamp_ntz'2024-03-31 01:00:00' as at")

    rows = failures(frame, reason="late", payload=F.lit("p"), not_before="at", event_time="at")

    cast = frame.select(F.unix_micros(F.col("at").cast("timestamp"))).first()[0]
    micros = rows.select(F.unix_micros("not_before"), F.unix_micros("event_time")).first()
    assert (cast, cast) == tuple(micros)


def test_a_time_as_a_key_is_the_same_in_each_session(spark, zone):
    """So is the id that is made of it, and what is said of the origin."""
    frame = spark.sql("select timestamp'2024-03-31 01:00:00.5Z' as at, 1 as id")

    row = failures(frame, reason="late", key="at", ordering_key="at", source=F.struct("at")).first()

    text = "2024-03-31T01:00:00.500000Z"
    assert (text, text, {"at": text}) == (row.key, row.ordering_key, json.loads(row.source))
    assert "8d05" == row.dedupe_id[:4]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("X'00ff'", "AP8="),
        ("date'2024-01-02'", "2024-01-02"),
        ("timestamp'2024-01-02 03:04:05Z'", "2024-01-02T03:04:05.000000Z"),
        ("timestamp_ntz'2024-01-02 03:04:05'", "2024-01-02T03:04:05.000000"),
        ("interval '1-2' year to month", "INTERVAL '1-2' YEAR TO MONTH"),
        ("struct(1 as a)", '{"a":1}'),
        ("array(1, 2)", "[1,2]"),
        ("7", "7"),
        ("1.50", "1.50"),
        ("true", "true"),
    ],
)
def test_keys_of_maps_are_texts(spark, zone, key, text):
    """Also within structs, arrays and maps; the same at each evaluation and in each session."""
    frame = spark.sql(
        f"select map({key}, 1) as m, array(struct(map({key}, map({key}, 2)) as m)) as n"
    )

    payload = failures(frame, reason="late").first().payload

    assert {"m": {text: 1}, "n": [{"m": {text: {text: 2}}}]} == json.loads(payload)


def test_the_json_leads_back_to_the_row(spark):
    """`from_json` with the frame's schema undoes it."""
    frame = spark.sql(
        """
        select 1 as id, 'ä"\n' as text, 1.10 as money, map('a', 1) as `a.map`, array(1, null) as l,
               timestamp'2024-01-01 00:00:00.000001Z' as at, date'2024-01-01' as day,
               X'00ff' as raw, struct(true as b) as s
        """
    )

    payloads = failures(frame, reason="late").select(
        F.from_json("payload", frame.schema).alias("row")
    )

    assert frame.first() == payloads.select("row.*").first()


def test_what_arguments_name_is_not_in_the_payload(spark):
    """The reason is not the row's data; its key and its time are."""
    frame = spark.sql("select 1 as id, 'late' as why, 'clean' as step, 2 as tried, now() as at")

    (row,) = failures(
        frame, reason="why", stage="step", attempt="tried", key="id", event_time="at"
    ).collect()

    assert {"id", "at"} == json.loads(row.payload).keys()
    assert ("late", "clean", 2, "1") == (row.reason, row.stage, row.attempt, row.key)


def test_columns_that_differ_in_case_are_data(spark):
    """Where the session tells them apart, an argument names the one that is spelt alike."""
    before = spark.conf.get("spark.sql.caseSensitive")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.sql("select 1 id, 'e' error, 'E' Error, 'r' reason, 'R' Reason")
        row = failures(frame, error="error", key="ID").first()
        of_kafka = spark.sql("select 'k' key, 'v' value, 'K' Key")
        data = failures(of_kafka, reason=F.lit("late")).first()
    finally:
        spark.conf.set("spark.sql.caseSensitive", before)

    assert {"id": 1, "Error": "E", "Reason": "R"} == json.loads(row.payload)
    assert ("r", "e", "1") == (row.reason, row.error, row.key)
    assert {"key": "k", "value": "v", "Key": "K"} == json.loads(data.payload)


def test_ordering_keys_are_keys(spark):
    """Binary ones are kept, others are texts; they stay among the row's data, as keys do."""
    frame = spark.sql("select 1 as id, X'00FF' as raw")
    (row,) = failures(frame, reason="late", payload=F.lit("x"), ordering_key="raw").collect()
    assert b"\x00\xff" == bytes(row.ordering_key)
    (row,) = failures(frame.select("id"), reason="late", ordering_key="id").collect()
    assert ("1", {"id": 1}) == (row.ordering_key, json.loads(row.payload))


def test_constants_and_expressions(orders):
    """A text that is no column, a number or a boolean is the same for all rows, without `lit`."""
    (row, _) = failures(
        orders,
        reason=F.concat(F.lit("late-"), "id"),
        key=F.expr("id + 1"),
        stage="clean",
        topic="elsewhere",
        retryable=False,
        attempt=3,
    ).collect()

    assert ("late-1", "2") == (row.reason, row.key)
    assert ("clean", "elsewhere", False, 3) == (
        row.stage,
        row.target_topic,
        row.retryable,
        row.attempt,
    )


def test_fields_of_structs_are_columns(spark):
    """Kafka Connect's rows have their key there."""
    frame = spark.sql("select struct(1 as id) as order")

    assert "1" == failures(frame, reason="late", key="order.id").first().key


@pytest.mark.parametrize("argument", ["payload", "key", "error", "event_time", "dedupe_id"])
def test_a_text_that_has_to_be_a_column_is_one(orders, argument):
    """A misspelt name does not become everybody's key."""
    with pytest.raises(ConfigError, match=f"{argument}='amuont'.*one of id, amount"):
        failures(orders, reason="late", **{argument: "amuont"})


@pytest.mark.parametrize("value", [["id", "amount"], {"id": "amount"}])
def test_several_columns_are_no_constant(orders, value):
    """Their names would be every row's key: a struct or array of the columns is what was meant."""
    with pytest.raises(ConfigError, match=r"key=.*: expected one Column or name of a column"):
        failures(orders, reason="late", key=value)


def test_without_a_reason_there_is_an_error(orders):
    """The default is what `split` adds, which this frame has not."""
    with pytest.raises(ConfigError, match="reason=None: expected a text"):
        failures(orders, reason=None)
    with pytest.raises(ConfigError, match="reason='reason'"):
        failures(orders)


def test_what_split_says_is_taken(orders):
    """The reason with its rules and details, and none of it in the payload."""
    _, failed = split(
        orders,
        {"positive": "amount > 0", "id": cast_failed(F.lit(None), "id")},
    )

    row, _ = failures(failed).collect()

    assert ("positive", ["positive", "id"]) == (row.reason, row.rule)
    assert "CAST_INVALID_INPUT" == json.loads(row.details)[0]["condition"]
    assert {"id": 1, "amount": -5} == json.loads(row.payload)


def test_details_of_the_row_are_data(orders):
    """Of any type, and uncut; only those of `split` are about the failure, whatever follows it."""
    frame = orders.withColumn("Details", F.expr("repeat('x', 5000)"))

    _, failed = split(frame, {"positive": "amount > 0"})
    row = failures(failed.where("id = 1")).first()
    assert {"id": 1, "amount": -5, "Details": "x" * 5000} == json.loads(row.payload)
    assert "details" not in row
    assert "x" * 5000 == failures(failed, details="Details").first().details

    _, failed = split(frame.withColumn("details", F.lit(7)), {"positive": "amount > 0"})
    assert 7 == json.loads(failures(failed).first().payload)["details"]

    _, failed = split(orders, {"id": cast_failed(F.lit(None), "id")})
    row = failures(failed.where("id = 1").select("*", F.lit(1).alias("n"))).first()
    assert "CAST_INVALID_INPUT" == json.loads(row.details)[0]["condition"]


def test_other_columns_named_rule_are_data(spark):
    """Only the reason of `split` brings its neighbours along."""
    frame = spark.sql("select 1 as id, 'mine' as rule, 'yours' as why")

    row = failures(frame, reason="why").first()

    assert {"id": 1, "rule": "mine"} == json.loads(row.payload)
    assert "rule" not in row


def test_what_could_not_be_read_is_the_payload(spark, tmp_path):
    """The line as it was, for there is no row; and Spark's own name for what happened."""
    (tmp_path / "in.json").write_text('{"id": 1}\n{"id": \n')
    lines = spark.read.schema("id int, _corrupt_record string").json(str(tmp_path))

    rows = failures(lines, reason="_corrupt_record").collect()

    assert {
        ('{"id": ', "MALFORMED_RECORD_IN_PARSING"),
        ('{"id":1}', None),  # read well, but every row of the frame counts as failed
    } == {(row.payload, row.reason) for row in rows}


def test_rescued_data_stays_in_the_payload(spark):
    """What fitted no column is a part of the row."""
    frame = spark.sql("""select 1 as id, '{"amount":"x"}' as _rescued_data""")

    row = failures(frame, reason="_rescued_data").first()

    assert "RESCUED_DATA" == row.reason
    assert {"id": 1, "_rescued_data": '{"amount":"x"}'} == json.loads(row.payload)


def test_what_a_rule_engine_found_is_the_reason(spark):
    """The first name, all names, and all of what it says; columns given by themselves win."""
    frame = spark.sql(
        """
        select 1 as id, 'mine' as text,
          array(named_struct('name', 'a', 'message', 'no a'),
                named_struct('name', 'b', 'message', 'no b')) as _errors
        """
    )

    row = failures(frame, reason="_errors").first()
    assert ("a", ["a", "b"]) == (row.reason, row.rule)
    assert ["no a", "no b"] == [each["message"] for each in json.loads(row.details)]
    assert {"id", "text"} == json.loads(row.payload).keys()

    assert "mine" == failures(frame, reason="_errors", details="text").first().details


def test_a_reason_says_something(orders):
    """A number does not."""
    with pytest.raises(ConfigError, match="reason='id': expected a text, a struct or an array"):
        failures(orders, reason="id")


def test_payloads_are_not_touched(spark):
    """Bytes and text as they are; a struct as JSON."""
    frame = spark.sql("select X'00ff' as raw, 'text' as text, struct(1 as a) as struct")

    payloads = [
        failures(frame, reason="late", payload=name).first().payload
        for name in ("raw", "text", "struct")
    ]

    assert [b"\x00\xff", "text", '{"a":1}'] == payloads


@pytest.mark.parametrize("columns", [["value"], ["value", "_metadata"], ["value", "_METADATA"]])
def test_the_file_is_the_source(spark, tmp_path, columns):
    """Whether or not the hidden column was asked for, and through what `split` does."""
    (tmp_path / "in.txt").write_text("one\n")
    lines = spark.read.text(str(tmp_path)).select(*columns)

    _, failed = split(lines, {"no": "false"})
    row = failures(failed).first()

    assert f"file:{tmp_path}/in.txt" == json.loads(row.source)["file"].replace("///", "/")
    assert '{"value":"one"}' == row.payload


@pytest.mark.parametrize(
    "made",
    [
        lambda lines, others: lines.join(others, F.expr("value = other")),
        lambda lines, _: lines.mapInPandas(lambda frames: frames, "value string"),
        lambda lines, _: lines.groupBy("value").applyInPandas(lambda rows: rows, "value string"),
    ],
    ids=["a join of files", "mapInPandas", "applyInPandas"],
)
def test_where_no_one_file_is_known_there_is_no_source(spark, tmp_path, made):
    """Two files have a hidden column each, and rows that Python has made have none."""
    (tmp_path / "in.txt").write_text("one\n")
    read = [
        spark.read.text(str(tmp_path)).withColumnRenamed("value", n) for n in ("value", "other")
    ]
    frame = made(*read)

    _, failed = split(frame, {"no": "false"})
    rows = [*failures(failed).collect(), *failures(frame, reason="late").collect()]

    assert [("one", None)] * 2 == [
        (json.loads(row.payload)["value"], row.asDict().get("source")) for row in rows
    ]


def test_the_row_of_a_parquet_file_is_in_the_source(spark, tmp_path):
    """There, the file knows it."""
    spark.range(10).coalesce(1).write.parquet(str(tmp_path / "in"))

    row = failures(spark.read.parquet(str(tmp_path / "in")).where("id = 7"), reason="late").first()

    assert 7 == json.loads(row.source)["position"]


def test_a_cache_is_not_passed_over(spark, tmp_path):
    """Asking a cached frame for its files would read them again, which may give other rows."""
    file = tmp_path / "in.txt"
    file.write_text("one\n")
    lines = spark.read.text(str(tmp_path)).persist()
    try:
        assert 1 == lines.count()
        file.write_text("two\n")

        rows = failures(lines.where("length(value) = 3"), reason="late").collect()
    finally:
        lines.unpersist()

    assert ['{"value":"one"}'] == [row.payload for row in rows]
    assert "source" not in rows[0]


def test_the_sink_takes_every_column(spark):
    """What comes out is what the sink accepts, with each argument given."""
    frame = spark.sql(
        "select 'p' as payload, now() as at, map('a', 'b') as headers, array('r') as rule"
    )

    rows = failures(
        frame,
        reason="late",
        payload="payload",
        key="payload",
        rule="rule",
        error="payload",
        details="payload",
        stage="clean",
        retryable=True,
        attempt=1,
        delay_ms=5,
        not_before="at",
        action="retry",
        topic="elsewhere",
        event_time="at",
        headers="headers",
        origin_topic="payload",
        origin_message_id="payload",
        source=F.struct("payload", F.lit(None).alias("no")),
        dedupe_id="payload",
    )

    assert set(check_schema(rows.schema, SinkOptions.parse(OPTIONS)).known) == set(rows.columns)
    assert '{"payload":"p"}' == rows.first().source


def test_equal_rows_have_equal_ids(spark, orders):
    """On each attempt, and in whatever order they come; ids of the rows' own are kept."""

    def ids(frame, **arguments):
        rows = failures(frame, **({"reason": "late"} | arguments)).collect()
        return [row.dedupe_id for row in rows]

    again = spark.sql("select * from values (2, null), (1, -5) as orders(id, amount)")
    first, second = ids(orders)
    assert first != second
    assert [second, first] == ids(again)
    assert all(len(each) == 32 for each in (first, second))
    assert ["mine", "mine"] == ids(orders, dedupe_id=F.lit("mine"))
    others = [{"reason": "early"}, {"stage": "x"}, {"key": "id"}, {"source": F.struct("id")}]
    found = {each for arguments in others for each in ids(orders, **arguments)}
    assert 8 == len(found | {first, second}) - 2


def test_the_message_tells_a_row(spark):
    """Whatever became of its payload; pulsar-spark's columns are the origin, as they are."""
    frame = spark.sql(
        "select explode(array(X'76', X'77')) as value, 't' as __topic, X'00FF' as __messageId"
    )
    rows = failures(frame, reason="late", payload="value").collect()
    assert {("t", b"\0\xff")} == {(row["__topic"], bytes(row["__messageId"])) for row in rows}
    assert 1 == len({row.dedupe_id for row in rows})


KAFKA = """
select X'6B' as key, X'76' as value, 't' as topic, 3 as partition, 7L as offset,
       timestamp'2024-01-02 03:04:05Z' as timestamp, 0 as timestampType,
       array(struct('h' as key, X'31' as value)) as headers
"""


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("columns", ["*", "key, value", "key, value, timestamp"])
def test_rows_of_kafka_are_messages(spark, columns, texts):
    """Their value is the payload, as bytes or by Kafka's idiom as texts; the rest is beside it."""
    rows = spark.sql(KAFKA)
    if texts:
        rows = rows.withColumns({name: F.col(name).cast("string") for name in ("key", "value")})

    row = failures(rows.selectExpr(*columns.split(", "), "'late' as reason")).first()

    assert (("k", "v") if texts else (b"k", b"v")) == (row.key, row.payload)
    if columns == "*":
        assert {"topic": "t", "partition": 3, "offset": 7} == json.loads(row.source)
        assert {"h": "1"} == row.headers
    if columns != "key, value":
        assert 1_704_164_645 == row.event_time.timestamp()


def test_rows_of_pulsar_spark_are_messages(spark):
    """With key, headers and event time; the first message of a letter stays its origin."""
    row = failures(
        spark.sql(
            """
            select X'76' as value, X'6B' as __key, 't' as __topic, X'00FF' as __messageId,
                   timestamp'2024-01-02 03:04:05Z' as __eventTime, now() as __publishTime,
                   map('h', '1', 'RECONSUMETIMES', '3') as __messageProperties
            """
        ),
        reason="late",
    ).first()

    assert (b"v", b"k", "t") == (row.payload, row.key, row["__topic"])
    assert {"h": "1", "RECONSUMETIMES": "3"} == row.headers
    assert 1_704_164_645 == row.event_time.timestamp()
    assert "__publishTime" not in row


def test_a_row_with_more_than_kafkas_columns_is_data(spark):
    """Nothing of it is left out."""
    row = failures(spark.sql("select 'k' as key, 'v' as value, 1 as id"), reason="late").first()

    assert {"key": "k", "value": "v", "id": 1} == json.loads(row.payload)
    assert "key" not in row


@pytest.mark.parametrize("call", ["failures", "split", "write_failures"])
def test_a_frame_is_one_of_spark(orders, call):
    """The error says what to do with one of pandas."""
    frame = orders.toPandas()
    calls = {
        "failures": lambda: failures(frame, reason="late"),
        "split": lambda: split(frame, {"even": "id % 2 = 0"}),
        "write_failures": lambda: write_failures(frame, OPTIONS),
    }

    with pytest.raises(ConfigError, match=r"pandas\S+DataFrame: .* spark.createDataFrame"):
        calls[call]()
