"""Tasks that run again, workers, brokers and drivers that are killed: the records stay right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid

import pytest

from support.reading import SUBSCRIPTION, eventually
from support.spark import chaos
from support.spark.cluster import Cluster
from support.spark.routed import Job, Whereabouts, judge
from support.stored import stored

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


def right(job, rows=ROWS):
    """Check the last record against the recount, and return it."""
    record = job.records()[-1]
    assert rows == record.rows_in
    assert (0, "done") == (record.unaccounted, record.state)
    assert Whereabouts.said(record) == job.recount()
    return record


def each_in(frame, passing):
    """Return *frame*, of which each batch goes through a function in a worker."""
    return frame.mapInArrow(passing, frame.schema)


@pytest.mark.nightly
@four_attempts
def test_tasks_that_run_again_count_once(job):
    """The worker of each task is killed once, in each job that reads good or dropped rows."""
    job.put("1.json", range(ROWS))
    killed = job.folder / "killed"
    killed.mkdir()
    path = str(killed)

    def die():
        import pathlib  # noqa: PLC0415 - this function runs in a worker

        (pathlib.Path(path) / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def handler(batch):
        good, failed, dropped = judge(batch.repartition(2))
        return each_in(good, chaos.pause(20, die)), failed, each_in(dropped, chaos.pause(5, die))

    job.run(handler)

    assert len(list(killed.iterdir())) >= 6, "two tasks counted two frames, and wrote one"
    right(job)


@pytest.mark.nightly
@four_attempts
def test_rows_that_are_sent_again_count_once(job, admin, namespace):
    """Workers are killed while rows are sent: some are there twice, with equal ids."""
    job.put("1.json", range(ROWS))
    go = job.folder / "go"
    path = str(go)

    def first():
        chaos.await_file(path)
        chaos.kill_other_workers()

    def some_stored():
        return job.dead in admin.topics(namespace) and admin.stats(job.dead)["msgInCounter"] > 1000

    def give_the_sign():
        eventually(some_stored, within=200)
        go.touch()

    sign = threading.Thread(target=give_the_sign)

    def handler(batch):
        good, failed, dropped = judge(batch.repartition(2))
        sign.start()
        return good, each_in(failed, chaos.pause(15, first)), dropped

    job.run(handler)
    sign.join()

    record = right(job)
    assert job.letters() > record.retried + record.dead_lettered["broken"], "killed too late"


@pytest.mark.nightly
@four_attempts
def test_duplicates_are_told_when_the_broker_knows_them(job, admin, namespace):
    """Effectively once: no row is there twice, and the record says which were there before."""
    admin.set_namespace_policy(namespace, "deduplication", value=True)
    once = {"delivery": "effectively-once", "sink.id": "job", "sink.partitions": 2}
    job.put("1.json", range(2000))

    def fail(*_):
        raise RuntimeError

    with pytest.raises(Exception, match="RuntimeError"):
        job.run(options=once, on_report=fail)
    job.run(options=once)

    first, second = job.records(all_attempts=True)
    assert (0, 400) == (first.duplicates, second.duplicates)
    assert ("failed", "done") == (first.state, second.state)
    right(job, 2000)
    assert 400 == job.letters()


@pytest.mark.nightly
@four_attempts
def test_a_broker_that_is_killed(spark, own_broker, tmp_path):
    """And comes back: the task waits for it, or runs again."""
    job = Job(
        spark,
        {
            "service.url": own_broker.service_url,
            "topic": f"persistent://public/default/{uuid.uuid4().hex}",
            "subscription": SUBSCRIPTION,
            "send.timeout_ms": "240000",
            "client.operation_timeout_seconds": "120",
        },
        tmp_path,
    )
    job.put("1.json", range(ROWS))
    reached, go = tmp_path / "reached", tmp_path / "go"
    paths = str(reached), str(go)

    def first():
        import pathlib  # noqa: PLC0415 - this function runs in a worker

        pathlib.Path(paths[0]).touch()
        chaos.await_file(paths[1])

    def restart():
        eventually(reached.exists, within=200)
        own_broker.kill()
        go.touch()
        own_broker.start()

    def handler(batch):
        good, failed, dropped = judge(batch.repartition(2))
        killer.start()
        return good, each_in(failed, chaos.pause(15, first)), dropped

    killer = threading.Thread(target=restart)
    job.run(handler)
    killer.join()

    right(job)


PROGRAM = """
import json, os
from pathlib import Path
from pulsar_retry_spark.local import local_session
from support.spark.routed import Job

with local_session() as spark:
    Job(spark, json.loads(os.environ["OPTIONS"]), Path(os.environ["FOLDER"])).run()
"""


def test_a_driver_that_is_killed(job, admin, namespace):
    """With kill -9: its attempt stays begun, and the next one has the right numbers."""
    job.put("1.json", range(ROWS))
    environment = os.environ | {
        "FOLDER": str(job.folder),
        "OPTIONS": json.dumps(job.options),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", PROGRAM]

    def some_stored():
        return job.dead in admin.topics(namespace) and admin.stats(job.dead)["msgInCounter"] > 1000

    # It takes much longer than a busy machine needs to kill it.
    slow = environment | {"OPTIONS": json.dumps(job.options | {"rate_limit": "500"})}
    with subprocess.Popen(command, env=slow, start_new_session=True) as process:
        eventually(some_stored, within=200)
        assert process.poll() is None, "it was too fast to be killed"
        os.killpg(process.pid, signal.SIGKILL)
    (record,) = job.records()
    assert ("begun", 1, None) == (record.state, record.attempt, record.ended)

    subprocess.run(command, env=environment, check=True, timeout=400)

    attempts = [(each.attempt, each.state) for each in job.records(all_attempts=True)]
    assert [(1, "begun"), (2, "done")] == attempts
    right(job)
    assert len(stored(job.options["service.url"], job.dead)) > ROWS // 10, "it was killed too early"


@pytest.mark.nightly
def test_an_executor_that_dies_while_rows_are_judged(tmp_path):
    """By random rules: its rows are judged again, so what was counted before does not count."""
    with Cluster(tmp_path / "cluster") as cluster:
        environment = os.environ | {
            "FOLDER": str(tmp_path),
            "MASTER": cluster.url,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", "from support.spark.losing import main; main()"]
        subprocess.run(command, env=environment, check=True, timeout=400)

    said = json.loads((tmp_path / "said.json").read_text())
    assert said["lost"], "no executor was lost"
    assert said["known"] is None
    assert {"good": said["good"], "bad": said["bad"]} == said["counted"]
    assert said["good"] + said["bad"] == said["rows"] == said["different"]
