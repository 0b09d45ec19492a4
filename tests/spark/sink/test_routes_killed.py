"""Workers, executors, brokers and drivers that are killed while rows are written: none is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from urllib.error import HTTPError

import pytest

from pulsar_retry_spark.sink.report import Report
from support.brokers.admin import Admin
from support.spark import chaos
from support.spark.routed import Job, Whereabouts, judge
from support.stored import stored
from support.waiting import eventually

ROWS = 100_000

pytestmark = [
    pytest.mark.usefixtures("closed_clients"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc"),
    pytest.mark.timeout(600),
]

four_attempts = pytest.mark.parametrize("spark", ["local[2,4]"], indirect=True)


@pytest.fixture(autouse=True)
def small_batches(spark):
    """Let rows come to Python in batches of 500."""
    chaos.by_value()
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    spark.conf.set(key, "500")
    yield
    spark.conf.set(key, before)


@pytest.fixture
def job(spark, options, tmp_path):
    """Give a stream, with topics of its own."""
    return Job(spark, options, tmp_path)


def check(job):
    """Check that each row is where it belongs; a failed row may be there twice, with one id."""
    tenth = ROWS // 10
    assert Whereabouts(ROWS, 8 * tenth, tenth, {"broken": tenth}) == job.recount()


def each_in(frame, passing):
    """Return *frame*, of which each batch goes through a function in a worker."""
    return frame.mapInArrow(passing, frame.schema)


@pytest.fixture
def some_stored(job, admin, namespace):
    """Return a function that tells whether some dead letters are stored."""

    def some_stored() -> bool:
        return job.dead in admin.topics(namespace) and admin.stats(job.dead)["msgInCounter"] > 1000

    return some_stored


@pytest.mark.nightly
@four_attempts
def test_workers_that_are_killed(job, some_stored):
    """While rows are sent: some are there twice, with equal ids."""
    job.put("1.json", range(ROWS))
    go = job.folder / "go"
    path = str(go)

    def first():
        chaos.await_file(path)
        chaos.kill_other_workers()

    def give_the_sign():
        eventually(some_stored, within=200)
        go.touch()

    sign = threading.Thread(target=give_the_sign)

    def handler(batch):
        good, failed = judge(batch.repartition(2))
        sign.start()
        return good, each_in(failed, chaos.pause(15, first))

    job.run(handler)
    sign.join()

    check(job)
    assert job.letters() > ROWS // 5, "killed too late"


PROGRAM = """
import json, os
from pathlib import Path
from local_spark import local_session
from support.spark import chaos
from support.spark.routed import Job, judge

def slowly(batch):
    good, failed = judge(batch)
    return good, failed.mapInArrow(chaos.slowed(float(os.environ["PAUSE"])), failed.schema)

chaos.by_value()
with local_session(conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}) as spark:
    Job(spark, json.loads(os.environ["OPTIONS"]), Path(os.environ["FOLDER"])).run(slowly)
"""


def test_a_driver_that_is_killed(job, some_stored):
    """With kill -9: the next run does its micro-batch again."""
    job.put("1.json", range(ROWS))
    environment = os.environ | {
        "FOLDER": str(job.folder),
        "OPTIONS": json.dumps(job.options),
        "PAUSE": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", PROGRAM]

    # A second for 500 rows takes much longer than a busy machine needs to kill it.
    slow = environment | {"PAUSE": "1"}
    with subprocess.Popen(command, env=slow, start_new_session=True) as process:
        eventually(some_stored, within=200)
        assert process.poll() is None, "it was too fast to be killed"
        os.killpg(process.pid, signal.SIGKILL)

    subprocess.run(command, env=environment, check=True, timeout=400)

    check(job)
    assert len(stored(job.options["service.url"], job.dead)) > ROWS // 10, "it was killed too early"


WRITING = """
import json, os
from pyspark.sql import functions as F
from pulsar_retry_spark import failures, write_failures
from local_spark import local_session
from support.spark import chaos

chaos.by_value()
conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500", "spark.executor.memory": "512m"}
with local_session(master="local-cluster[2,1,1024]", conf=conf) as spark:
    ids = spark.range(0, int(os.environ["ROWS"]), 1, 4)
    rows = failures(ids, payload="id", reason=F.lit("broken"), retryable=False)
    rows = rows.mapInArrow(chaos.slowed(1), rows.schema)
    print(write_failures(rows, json.loads(os.environ["OPTIONS"])).to_json())
"""


def executors(session):
    """Return the processes of a session that are executors of Spark."""
    found = []
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            command = (each / "cmdline").read_text(encoding="utf-8")
            if os.getsid(int(each.name)) == session and "CoarseGrainedExecutorBackend" in command:
                found.append(int(each.name))
    return found


@pytest.mark.nightly
def test_an_executor_and_a_broker_that_are_killed(own_broker):
    """Spark runs the lost tasks again, and the others wait for the broker: each row is there."""
    rows, dead = 20_000, "persistent://public/default/killed-billing-DLQ"
    admin = Admin(own_broker.admin_url)
    given = {"service.url": own_broker.service_url, "topic": "killed", "subscription": "billing"}
    environment = os.environ | {
        "OPTIONS": json.dumps(given | {"send.timeout_ms": 90_000}),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "ROWS": str(rows),
    }

    def are_stored(count):
        with contextlib.suppress(HTTPError):  # the topic is not there yet
            return admin.stats(dead)["msgInCounter"] > count
        return False

    with subprocess.Popen(
        [sys.executable, "-c", WRITING],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        eventually(lambda: are_stored(rows // 10), within=200)
        os.kill(executors(job.pid)[0], signal.SIGKILL)
        eventually(lambda: are_stored(rows // 4), within=200)
        assert job.poll() is None, "it was too fast to be killed"
        own_broker.kill()
        own_broker.start()
        said, _ = job.communicate(timeout=400)

    report = Report.from_json(said.splitlines()[-1])
    assert rows == report.rows
    assert report.attempts > report.partitions == 4
    ids = defaultdict(set)
    for message in stored(own_broker.service_url, dead):
        ids[message.data()].add(message.properties()["DEDUPE_ID"])
    assert {b"%d" % row for row in range(rows)} == set(ids)
    assert {1} == {len(each) for each in ids.values()}
