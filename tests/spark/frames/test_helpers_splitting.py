"""Good rows and failed rows: `split` and `cast_failed`."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from pulsar_retry import ConfigError
from pulsar_retry_spark import cast_failed, failures, split
from support.spark.routed import ran

ORDERS = """
select * from values (1, 10, 'EUR'), (2, -1, 'EUR'), (3, null, 'EUR'), (4, -1, 'XXX')
as orders(id, amount, currency)
"""


@pytest.fixture
def orders(spark):
    """Give rows of which the first is good."""
    return spark.sql(ORDERS)


def rules():
    """Return one rule in each notation."""
    return {"amount-positive": "amount > 0", "currency-known": F.col("currency") == "EUR"}


def ids(frame):
    """Return which orders are in a frame."""
    return sorted(row.id for row in frame.collect())


def test_every_row_is_in_one_of_the_two(orders):
    """A rule that gives null does not hold; good rows are as they were, failed ones say why."""
    good, failed = split(orders, rules())

    assert [1] == ids(good)
    assert orders.schema == good.schema
    assert [2, 3, 4] == ids(failed)
    said = {row.id: (row.reason, row.rule) for row in failed.collect()}
    assert ("amount-positive", ["amount-positive"]) == said[2]
    assert ("amount-positive", ["amount-positive", "currency-known"]) == said[4]
    assert ["id", "amount", "currency", "reason", "rule"] == failed.columns


def test_a_stream_is_split(spark, orders, tmp_path):
    """Its rows, and the failures that are made of them, are those of a frame."""
    folder = str(tmp_path / "in")
    orders.write.parquet(folder)
    good, failed = split(spark.read.parquet(folder), rules())
    good_stream, failed_stream = split(
        spark.readStream.schema(orders.schema).parquet(folder), rules()
    )

    assert [1] == ids(good) == sorted(row.id for row in ran(good_stream))
    wanted = failures(failed, key="id").orderBy("key").collect()
    found = sorted(ran(failures(failed_stream, key="id")), key=lambda row: row.key)
    assert 3 == len(found)
    assert wanted == found


def test_what_a_rule_engine_found_fails(spark):
    """An array of structs: each element is a failed rule, and nothing is lost of it."""
    frame = spark.sql(
        """
        select * from values
          (1, array(struct('id-known', 'no such id'), struct('age-set', 'age is null'))),
          (2, array()), (3, null)
        as t(id, found)
        """
    ).selectExpr("id", "cast(found as array<struct<name:string,message:string>>) as _errors")

    good, failed = split(frame, {"engine": "_errors", "odd": "id % 2 = 0"})

    assert [2] == ids(good)
    said = {row.id: row for row in failed.collect()}
    assert "id-known" == said[1].reason
    assert ["id-known", "age-set", "odd"] == said[1].rule
    assert [
        {"name": "id-known", "message": "no such id"},
        {"name": "age-set", "message": "age is null"},
    ] == json.loads(said[1].details)
    assert said[3].details is None


@pytest.mark.parametrize(
    ("raw", "is_good"), [("'7'", True), ("'seven'", False), ("''", False), ("null", True)]
)
def test_a_cast_that_gave_null_fails(spark, raw, is_good):
    """Null where there was something; null where there was nothing is as good as before."""
    frame = spark.sql(f"select 1 as id, cast({raw} as string) as raw")
    parsed = frame.withColumn("value", F.expr("try_cast(raw as int)"))

    good, failed = split(parsed, {"value": cast_failed("value", "raw")})

    assert int(is_good) == good.count()
    assert int(not is_good) == failed.count()


def test_a_cast_fails_with_sparks_own_condition(spark):
    """Reasons are alike for rows that Spark refuses and for rows that a `try_…` function does."""
    frame = spark.sql("select 'seven' || repeat('x', 5000) as raw")
    frame = frame.withColumn("value", F.expr("try_cast(raw as int)"))
    with pytest.raises(Exception, match="seven") as spark_says:
        frame.selectExpr("cast(raw as int)").collect()

    _, failed = split(frame, {"value": cast_failed("value", "raw")})

    row = failed.first()
    assert spark_says.value.getCondition() == row.reason
    assert ["value"] == row.rule
    assert [
        {
            "rule": "value",
            "condition": spark_says.value.getCondition(),
            "expression": "seven" + "x" * 251,
        }
    ] == json.loads(row.details)


@pytest.mark.parametrize(
    "rules", [{}, {"": "id > 0"}, {" ": "id > 0"}, {1: "id > 0"}, ["id"], None]
)
def test_rules_have_names(orders, rules):
    """They are what a failed row says of itself."""
    with pytest.raises(ConfigError, match="rules="):
        split(orders, rules)


@pytest.mark.parametrize("rule", ["id", "null", "map('a', 1)", "array('a')"])
def test_a_rule_has_a_type_that_can_fail(orders, rule):
    """A number is neither good nor bad; the error names the rule, its type and what is accepted."""
    with pytest.raises(ConfigError, match=r"rules\['mine'\].*expected a boolean, a string"):
        split(orders, {"fine": "id > 0", "mine": rule})


@pytest.mark.parametrize("name", ["reason", "Rule"])
def test_columns_of_the_user_are_not_replaced(orders, name):
    """`reason` and `rule` are added to the failed rows, so no column may be there by that name."""
    with pytest.raises(ConfigError, match=f"no column {name}"):
        split(orders.withColumnRenamed("currency", name), {"id": "id > 0"})


def test_details_are_taken_only_where_they_are_added(orders):
    """A frame with a column of that name can be split by yes-or-no rules."""
    frame = orders.withColumnRenamed("currency", "details")

    _, failed = split(frame, {"amount": "amount > 0"})
    assert {"EUR", "XXX"} == {row.details for row in failed.collect()}

    with pytest.raises(ConfigError, match="no column details"):
        split(frame, {"amount": cast_failed("amount", "id")})


def test_a_cast_is_the_same_each_time(spark):
    """So it may judge a stream, and rows that are not kept."""
    rule = {"value": cast_failed(F.expr("try_cast(value as tinyint)"), "value")}
    stream = spark.readStream.format("rate").load()
    assert "reason" in split(stream, rule)[1].columns

    good, failed = split(spark.range(100, 150).toDF("value"), rule, once=False)
    assert (28, 22) == (good.count(), failed.count())


@pytest.mark.parametrize("raw", ['\'{"a": "x"}\'', "'no JSON'"])
def test_a_struct_is_no_result_of_a_cast(spark, raw):
    """`from_json` returns one for every text, broken or not; its own column says what is broken."""
    kinds = "a int, _corrupt_record string"
    parsed = spark.sql(f"select 1 as id, {raw} as raw").withColumn("s", F.from_json("raw", kinds))

    with pytest.raises(Exception, match="_corrupt_record"):
        split(parsed, {"s": cast_failed("s", "raw")})

    _, failed = split(parsed, {"s": "s._corrupt_record"})
    assert [1] == ids(failed)
