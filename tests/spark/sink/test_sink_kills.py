"""Kills while rows are written: no row is lost, and rows that are there twice have one id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from pulsar_retry_spark.datasource import register
from support.spark import chaos
from support.stored import stored
from support.waiting import eventually

ROWS = 40_000
ALL = {b"%d" % row for row in range(ROWS)}

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc"),
    pytest.mark.usefixtures("closed_clients"),
    pytest.mark.timeout(600),
]

four_attempts = pytest.mark.parametrize("spark", ["local[2,4]"], indirect=True)


@pytest.fixture
def written(admin, namespace, dead):
    """Return a function that tells whether some rows are stored."""

    def written() -> bool:
        return dead in admin.topics(namespace) and admin.stats(dead)["msgInCounter"] > 2000

    return written


@pytest.fixture
def killing(spark, tmp_path, written):
    """Return a function for `mapInArrow` that kills workers when some rows are stored."""
    chaos.by_value()
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    spark.conf.set(key, "1000")
    go = str(tmp_path / "go")

    def first() -> None:
        chaos.await_file(go)
        chaos.kill_other_workers()

    def give_the_sign() -> None:
        eventually(written, within=200)
        Path(go).touch()

    sign = threading.Thread(target=give_the_sign)
    sign.start()
    yield chaos.pause(15, first)
    sign.join()
    spark.conf.set(key, before)


@four_attempts
def test_a_worker_that_is_killed_loses_nothing(spark, options, killing, dead):
    """Spark runs its task again: some rows are there twice, and their ids tell."""
    register(spark)
    frame = spark.range(ROWS, numPartitions=2).selectExpr(
        "cast(id AS STRING) AS payload", "false AS retryable"
    )
    frame = frame.mapInArrow(killing, frame.schema)
    frame.write.format("pulsar-failures").options(**options).mode("append").save()

    ids, attempts = defaultdict(set), set()
    messages = stored(options["service.url"], dead)
    for message in messages:
        said = message.properties()
        ids[message.data()].add(said["DEDUPE_ID"])
        attempts.add(json.loads(said["FAILURE_TASK"])["attempt"])
    assert set(ids) == ALL
    assert {1} == {len(each) for each in ids.values()}
    assert len(messages) > ROWS, "the kill came too late to mean anything"
    assert 1 in attempts


JOB = """
import json, os
from pulsar_retry_spark import write_failures
from pulsar_retry_spark.local import local_session

with local_session() as spark:
    failed = spark.range(int(os.environ["ROWS"])).selectExpr("cast(id AS STRING) AS payload")
    write_failures(failed, json.loads(os.environ["OPTIONS"]))
"""


def test_a_job_that_is_killed_and_run_again(options, written, dead):
    """Driver, executors and all, with kill -9; rows of the first run are there twice, as one id."""
    options = options | {"max_attempts": "1"}
    environment = os.environ | {
        "ROWS": str(ROWS),
        "OPTIONS": json.dumps(options | {"rate_limit": "5000"}),
    }
    command = [sys.executable, "-c", JOB]
    with subprocess.Popen(command, env=environment, start_new_session=True) as job:
        eventually(written, within=200)
        assert job.poll() is None, "it was too fast to be killed"
        os.killpg(job.pid, signal.SIGKILL)

    subprocess.run(command, env=environment, check=True, timeout=200)

    messages = stored(options["service.url"], dead)
    ids = defaultdict(set)
    for message in messages:
        ids[message.data()].add(message.properties()["DEDUPE_ID"])
    assert set(ids) == ALL
    assert {1} == {len(each) for each in ids.values()}
    assert len(messages) > ROWS, "it was killed too early"
