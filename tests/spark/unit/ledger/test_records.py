"""The record, its file, and the sums of many records: without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import attrs
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pulsar_retry_spark.ledger.metrics import METRICS, ledger_metrics
from pulsar_retry_spark.ledger.records import BatchRecord, latest, text_of
from pulsar_retry_spark.ledger.tallies import sums_of

RECORD = BatchRecord(
    query_id="q",
    run_id="r",
    batch_id=7,
    attempt=2,
    state="done",
    begun=datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
    ended=datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
    rows_in=20,
    good=11,
    retried=3,
    dead_lettered={"ä": 2, "": 1},
    dropped={"late": 2},
    duplicates=1,
)


def test_what_is_left_is_unaccounted_for():
    """Duplicates are among the others, so they are not counted again."""
    assert (1, False) == (RECORD.unaccounted, RECORD.balanced)
    assert attrs.evolve(RECORD, good=12).balanced
    assert -1 == attrs.evolve(RECORD, good=13).unaccounted


@pytest.mark.parametrize("name", ["rows_in", "good", "retried", "dead_lettered", "dropped"])
def test_nothing_is_balanced_if_a_number_is_not_known(name):
    """It is neither right nor wrong."""
    record = attrs.evolve(RECORD, **{name: None})
    assert (None, False) == (record.unaccounted, record.balanced)


def test_a_record_is_a_line_of_json():
    """Which tells the balance, too; fields of a later release are ignored."""
    text = RECORD.to_json()
    assert "\n" not in text
    fields = json.loads(text)
    assert (1, False) == (fields["unaccounted"], fields["balanced"])
    assert "2026-01-02T03:04:05.000678+00:00" == fields["begun"]
    assert RECORD == BatchRecord.from_json(json.dumps(fields | {"later": 1}))
    assert BatchRecord() == BatchRecord.from_json(BatchRecord().to_json())
    as_before = fields | {"dead_lettered": {"ä": 2, "": 1}, "dropped": {"late": 2}}
    assert RECORD == BatchRecord.from_json(json.dumps(as_before))


def test_the_last_attempt_counts():
    """Of each micro-batch of each query; a job has only one."""
    job = BatchRecord(state="done")
    other = attrs.evolve(RECORD, query_id="other", attempt=1)
    early, late = attrs.evolve(RECORD, attempt=9), attrs.evolve(RECORD, attempt=10)
    assert [late, other, job, job] == latest([early, late, other, job, job])


def test_the_numbers_in_words():
    """For the log."""
    expected = (
        "micro-batch 7 had 20 rows, but 11 are good, 3 retried, 3 dead-lettered and 2 dropped: "
        "1 are unaccounted for"
    )
    assert expected == text_of(RECORD)


def test_the_metrics():
    """The sums of what is done; a failed run counts, but not its rows."""
    registry = CollectorRegistry()
    registry.register(ledger_metrics("/unit/metrics"))
    sums = sums_of("/unit/metrics/")

    def value(name, **labels):
        labels |= {"ledger": "/unit/metrics"}
        return registry.get_sample_value(f"pulsar_retry_spark_{name}", labels)

    assert 0 == value("batches_total", state="unbalanced")
    assert value("unaccounted_rows") is None
    sums.add(RECORD)
    sums.add(attrs.evolve(RECORD, good=12))
    sums.add(attrs.evolve(RECORD, good=None))
    assert value("unaccounted_rows") is None
    sums.add(attrs.evolve(RECORD, good=12))
    sums.add(attrs.evolve(RECORD, state="failed"))

    batches = {
        state: value("batches_total", state=state)
        for state in ("balanced", "unbalanced", "unknown", "failed")
    }
    assert {"balanced": 2, "unbalanced": 1, "unknown": 1, "failed": 1} == batches
    assert 80 == value("rows_in_total")
    rows = {
        outcome: value("rows_total", outcome=outcome)
        for outcome in ("good", "retried", "dead_lettered", "dropped")
    }
    assert {"good": 35, "retried": 12, "dead_lettered": 12, "dropped": 8} == rows
    assert 4 == value("duplicates_total")
    assert 12 == value("dead_letters_total", reason="other"), "names that are no labels"
    assert 8 == value("dropped_total", reason="late")
    assert 0 == value("unaccounted_rows")
    text = generate_latest(registry).decode()
    assert all(each.full_name in text for each in METRICS)


def test_each_ledger_has_its_own_metrics():
    """Two queries of one driver."""
    sums_of("/unit/one").add(RECORD)
    registry = CollectorRegistry()
    registry.register(ledger_metrics("/unit/two"))
    name = "pulsar_retry_spark_rows_in_total"
    assert 0 == registry.get_sample_value(name, {"ledger": "/unit/two"})


@pytest.mark.parametrize(
    ("numbers", "unaccounted"),
    [
        ({"quarantined": 3}, 1),
        ({"quarantined": 4}, 0),
        ({"quarantined": 4, "retried": 3, "dead_lettered": {"a": 1}}, 0),
        ({"quarantined": 4, "retried": 3, "dead_lettered": {"a": 2}}, -1),
    ],
)
def test_rows_of_a_table_are_counted_once(numbers, unaccounted):
    """Whether they were sent as well or not."""
    nothing = {"retried": 0, "dead_lettered": {}, "dropped": {}}

    record = BatchRecord(rows_in=10, good=6, **(nothing | numbers))

    assert unaccounted == record.unaccounted
    assert record == BatchRecord.from_json(record.to_json())
