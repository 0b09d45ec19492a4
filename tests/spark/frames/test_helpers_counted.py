"""What is known about numbers of rows from the job that has judged them."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry_spark import failures, split
from pulsar_retry_spark.frames import counted
from pulsar_retry_spark.frames.counted import _counted, _jobs, counting_judged_rows, known_rows

RULES = {"two": "id % 2 != 0", "five": "id % 5 != 0"}


@pytest.fixture
def frame(spark):
    """Give 100 rows."""
    return spark.range(100).repartition(3)


@pytest.fixture(autouse=True)
def counting():
    """Count what is judged."""
    with counting_judged_rows():
        yield


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (lambda _batch, _good, bad: bad, {"two": 50, "five": 10}),
        (lambda _batch, _good, bad: bad.where("reason = 'five'"), {"five": 10}),
        (lambda _batch, _good, bad: bad.where("reason IN ('five', 'six')"), {"five": 10}),
        (lambda _batch, _good, bad: bad.where("reason IS NULL"), {}),
        (
            lambda _batch, _good, bad: bad.where("upper(reason) LIKE 'T%'").select("reason"),
            {"two": 50},
        ),
        (
            lambda _batch, _good, bad: (
                bad.where("reason != 'a'").where("reason != 'two'").sort("id")
            ),
            {"five": 10},
        ),
        (lambda _batch, _good, bad: bad.where("reason = 'five'").drop("reason"), {"": 10}),
        (lambda _batch, _good, bad: failures(bad.where("reason = 'two'"), reason="x"), {"": 50}),
        (lambda _batch, good, _bad: good, {"": 40}),
        (lambda _batch, good, _bad: good.withColumn("x", F.rand()).repartition(2), {"": 40}),
        (lambda batch, _good, _bad: batch, {"": 100}),
    ],
)
def test_what_is_known_needs_no_job(frame, select, expected):
    """It is what a count finds."""
    selected = select(frame, *split(frame, RULES))
    by_reason = "" not in expected
    before = _jobs(frame)

    assert expected == known_rows(selected, by_reason=by_reason)

    assert before == _jobs(frame)
    assert sum(expected.values()) == selected.count()
    if by_reason:
        found = selected.groupBy("reason").count().collect()
        assert expected == {row["reason"]: row["count"] for row in found}


@pytest.mark.parametrize(
    "select",
    [
        lambda good, _bad: good.where("id > 7"),
        lambda good, _bad: good.limit(3),
        lambda good, _bad: good.distinct(),
        lambda good, _bad: good.union(good),
        lambda good, _bad: good.mapInArrow(lambda each: each, good.schema),
        lambda good, _bad: good.selectExpr("explode(array(1, 2)) AS id"),
        lambda good, _bad: good.selectExpr("count(*)"),
        lambda _good, bad: bad.where("id > 7"),
        lambda _good, bad: bad.where("reason = 'two' AND id > 7"),
        lambda _good, bad: bad.where("rand() < 0.5"),
        lambda _good, bad: bad.where("reason = 'two' AND rand() < 0.5"),
        lambda _good, bad: bad.where(F.udf(lambda _: True, "boolean")("reason")),
        lambda _good, bad: bad.withColumn("reason", F.lit("two")).where("reason = 'two'"),
    ],
)
def test_everything_else_is_counted(frame, select):
    """What is not certain from the plan is not known."""
    assert known_rows(select(*split(frame, RULES))) is None


def test_the_reasons_of_rule_engines_are_not_known_before(frame):
    """They are in the rows; the numbers of rows are known all the same."""
    names = F.when(F.col("id") < 10, F.struct(F.concat(F.lit("rule-"), F.col("id")).alias("name")))
    good, bad = split(frame, {"engine": names})

    assert ({"": 90}, {"": 10}) == (known_rows(good), known_rows(bad))
    assert known_rows(bad, by_reason=True) is None
    assert known_rows(bad.where("reason = 'rule-3'")) is None


def test_a_reason_of_the_users_own_is_another(frame):
    """The column was replaced, so its values are not those that were counted."""
    _, bad = split(frame, RULES)

    assert known_rows(bad.withColumn("reason", F.lit("x")), by_reason=True) is None


def test_nothing_is_known_if_another_job_ran(frame):
    """It could have been one that judges lost rows again."""

    def judge_slowly(batches):
        import time  # noqa: PLC0415 - this function runs in a worker

        for each in batches:
            time.sleep(0.2)
            yield each

    slow = frame.mapInArrow(judge_slowly, frame.schema)
    begun, ready = threading.Event(), threading.Event()

    def count():
        while not ready.is_set():
            frame.sparkSession.range(1).count()
            begun.set()

    other = threading.Thread(target=count)
    other.start()
    assert begun.wait(120)
    good, bad = split(slow, RULES)
    ready.set()
    other.join()

    assert [] == _counted.get()
    assert (40, 60) == (good.count(), bad.count())


def test_a_spark_that_does_not_tell_its_numbers_counts_by_a_job(frame, monkeypatch):
    """Releases of Spark may change inside; then only the time is lost."""
    monkeypatch.setattr(counted, "_observed", lambda *_: 1 / 0)

    good, bad = split(frame, RULES)

    assert (None, None) == (known_rows(good), known_rows(bad))
    assert (40, 60) == (good.count(), bad.count())
