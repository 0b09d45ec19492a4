"""Tokens: they are taken from where they are, work, and are seen nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pulsar_retry.standalone import Standalone
from support.brokers.hostile import HOSTILE

#: Writes with a token in each way there is, once well and twice badly, and tells all that Spark
#: knows of it: plans, errors, and its own log and pulsar-client's at their chattiest.
JOB = """
import json, os
from pulsar_retry_spark import register
from pulsar_retry_spark.local import local_session

def attempt(action):
    try:
        action()
    except Exception as error:
        print("FAILED", repr(error), str(error), getattr(error, "__notes__", ""))
    else:
        print("WRITTEN")

def write(frame, options):
    frame.write.format("pulsar-failures").options(**options).mode("append").save()

conf = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": os.environ["EVENTS"],
}
with local_session(master="local[1]", conf=conf) as spark:
    spark.sparkContext.setLogLevel("INFO")
    register(spark)
    frame = spark.range(10).selectExpr("cast(id AS STRING) AS payload", "false AS retryable")
    for options in json.loads(os.environ["OPTIONS"]):
        attempt(lambda: write(frame, options))
        attempt(lambda: write(frame.withColumnRenamed("payload", "pay"), options))
        attempt(lambda: write(frame, options | {"max_failed_rows": "5"}))
        read = spark.read.format("pulsar-failures").options(**options).load()
        read.explain(True)
        print(read._jdf.queryExecution().toString())
        print("READ", read.count())
    store = spark._jsparkSession.sharedState().statusStore()
    for execution in range(store.executionsCount()):
        print(store.executionsList().apply(execution).physicalPlanDescription())
"""


@pytest.fixture(scope="module")
def guarded():
    """Give a broker that lets nobody in without a token."""
    with Standalone(fast_start=True, auth=True, settings=HOSTILE) as broker:
        yield broker


def test_tokens_work_and_are_seen_nowhere(guarded, tmp_path):
    """Not in a plan, an error, a log or an event."""
    token = guarded.admin_token
    path, events = tmp_path / "token", tmp_path / "events"
    path.write_text(f"{token}\n")
    events.mkdir()
    ways = {"auth.token": token, "auth.token_env": "MY_TOKEN", "auth.token_file": str(path)}
    options = [
        {
            "service.url": guarded.service_url,
            "topic": option.replace(".", "-"),
            "subscription": "billing",
            "log.level": "debug",
            option: value,
        }
        for option, value in ways.items()
    ]
    job = subprocess.run(
        [sys.executable, "-c", JOB],
        env=os.environ
        | {"MY_TOKEN": token, "OPTIONS": json.dumps(options), "EVENTS": events.as_uri()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=280,
        check=False,
    )
    assert 0 == job.returncode, job.stdout
    said = [
        line.split()[0]
        for line in job.stdout.splitlines()
        if line.startswith(("WRITTEN", "FAILED", "READ"))
    ]
    assert ["WRITTEN", "FAILED", "FAILED", "READ"] * 3 == said
    assert "unknown column 'pay'" in job.stdout
    assert "PULSAR_SINK_TOO_MANY_ROWS" in job.stdout
    assert "DEBUG" in job.stdout, "pulsar-client's log"
    logs = [each.read_text(errors="replace") for each in events.rglob("*") if each.is_file()]
    assert any("AppendData" in each for each in logs)
    for text in (job.stdout, *logs):
        assert token not in text
        assert token.rpartition(".")[2] not in text, "its signature alone is as good"
