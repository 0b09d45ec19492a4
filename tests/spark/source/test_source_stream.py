"""`spark.readStream.format("pulsar-failures")`: retry and dead-letter topics as a stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from support.spark.sourcing import Query, numbers
from support.waiting import eventually

NAME = "pulsar-failures"

#: Seconds for what takes a few micro-batches of a slow machine.
PATIENCE = 150


def logged(query, what):
    """Return the numbers of the micro-batches that a checkpoint has begun or finished."""
    return {path.name for path in Path(query.checkpoint, what).glob("[0-9]*")}


def test_what_is_there_is_read_once_and_leaves_no_backlog(letters, query, admin):
    """Run by run, with nothing in between, and the broker may delete what was read."""
    letters.send(*numbers(5))
    query.run()
    assert numbers(5) == query.read()
    eventually(lambda: admin.backlog(letters.dead, NAME) == 0)

    letters.send(*numbers(5, 7))
    letters.send(b"later", to=letters.retry)
    query.run()
    assert {*numbers(7), b"later"} == set(query.read())
    assert 8 == len(query.read())

    query.run()
    assert 8 == len(query.read())
    for topic in (letters.dead, letters.retry):
        eventually(lambda topic=topic: admin.backlog(topic, NAME) == 0)


def test_offsets_are_the_last_ids(letters, query):
    """A person can read them in the checkpoint."""
    ids = letters.send(*numbers(3))
    query.run()
    written = Path(query.checkpoint, "offsets", "0").read_text().splitlines()
    assert {letters.dead: ids[-1]} == json.loads(written[-1])


def test_only_what_is_in_the_checkpoint_is_acknowledged(letters, query, admin):
    """A query that runs on and on is one micro-batch behind; its next start catches up."""
    letters.send(*numbers(3))
    query.start()
    eventually(lambda: query.read() == numbers(3), PATIENCE)
    assert 3 == admin.backlog(letters.dead, NAME)

    letters.send(*numbers(3, 5))
    eventually(lambda: query.read() == numbers(5), PATIENCE)
    # One or two: Spark may have begun a micro-batch between the two letters.
    eventually(lambda: admin.backlog(letters.dead, NAME) in {1, 2}, PATIENCE)
    # A query that is stopped before its checkpoint has the micro-batch does it again.
    eventually(lambda: logged(query, "commits") == logged(query, "offsets"), PATIENCE)
    query.stop()

    query.run()
    assert numbers(5) == query.read()
    eventually(lambda: admin.backlog(letters.dead, NAME) == 0)


def test_two_queries_on_one_subscription_are_refused(spark, letters, query, tmp_path):
    """With an error that says what to do."""
    letters.send(b"a")
    query.start()
    eventually(lambda: query.read() == [b"a"], PATIENCE)
    second = Query(spark, letters.options, str(tmp_path / "second"))
    with pytest.raises(StreamingQueryException, match=r"PULSAR_SOURCE_SUBSCRIPTION_BUSY.*subscri"):
        second.run()
    second.run(subscription__reader="second")
    assert [b"a"] == second.read()
