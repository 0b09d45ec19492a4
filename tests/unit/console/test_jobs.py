"""Dry runs, and the jobs that follow from them; nothing is really redriven."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from pulsar_retry.console.filtering import Query
from pulsar_retry.console.jobs import Job, Jobs
from pulsar_retry.console.orders import Order, OrderOutcome, Tell
from pulsar_retry.console.store.database import MEMORY, Database
from pulsar_retry.console.store.records import Records
from pulsar_retry.errors import ConfigError, RedriveError
from pulsar_retry.replay import Cluster, Redriven

DLQ = "persistent://public/default/orders-billing-DLQ"
WANTED = Order(source=DLQ, query=Query([("reason", "odd")]))
BY = "ada"


class Held:
    """OrderWork that goes on until it is released or cancelled."""

    can_cancel = True

    def __init__(self, dry_run: bool, stage: Stage) -> None:
        self.dry_run, self.fault, self.outcome = dry_run, stage.fault, stage.outcome
        self.released, self.cancelled = threading.Event(), threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()
        self.released.set()

    def run(self, tell: Tell) -> OrderOutcome:
        tell(OrderOutcome(done=1))
        assert self.released.wait(120)
        if self.fault is not None:
            raise self.fault
        if self.cancelled.is_set():
            return OrderOutcome(done=2, is_cancelled=True)
        return self.outcome


class Stage:
    """Where work is made up."""

    def __init__(self, database: Database) -> None:
        self.records = Records(database)
        self.changed: list[str] = []
        self.jobs = self.started()
        self.held: list[Held] = []
        self.fault: Exception | None = None
        self.outcome = OrderOutcome(done=2)

    def started(self) -> Jobs:
        """Return the jobs of a console that starts with this store."""
        cluster = Cluster("pulsar://127.0.0.1:1")
        return Jobs(cluster, self.records, audits=False, changed=self.changed.append)

    def look(self) -> Job:
        """Start a dry run."""
        return self.jobs.look(WANTED, BY, 5)

    def ended(self, job: Job) -> Job:
        """Let everything go on, and return a job when it has ended."""
        running = self.jobs._running.get(job.id)
        for each in self.held:
            each.released.set()
        if running is not None:
            running.thread.join(120)
        found = self.jobs.get(job.id)
        assert found is not None
        return found


@pytest.fixture
def stage(monkeypatch) -> Iterator[Stage]:
    """Give jobs whose work waits."""
    database = Database(MEMORY)
    stage = Stage(database)

    def work(_order: Order, _cluster: Cluster, *, dry_run: bool) -> Held:
        stage.held.append(Held(dry_run, stage))
        return stage.held[-1]

    monkeypatch.setattr(Order, "work", work)
    yield stage
    stage.jobs.close()
    database.close()


def test_a_plan_is_confirmed_once(stage) -> None:
    """When it is done; then the same confirmation is the same redrive."""
    plan = stage.look()
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(plan.id, BY)
    assert "done" == stage.ended(plan).state

    redrive = stage.jobs.confirm(plan.id, BY)
    assert redrive.id == stage.jobs.confirm(plan.id, BY).id
    assert [True, False] == [each.dry_run for each in stage.held]
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(redrive.id, BY)
    assert [redrive.id] == [each.id for each in stage.jobs.all()]
    assert redrive.id in stage.changed
    assert DLQ not in stage.changed  # its letters have not changed yet


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (RedriveError("there is no topic"), "there is no topic"),
        (pulsar.ConnectError("nobody"), "the broker was not reached"),
    ],
)
def test_a_fault_is_told(stage, fault, told) -> None:
    """With what was done before; a dry run that has failed is no plan."""
    stage.fault = fault
    plan = stage.ended(stage.look())
    assert "failed" == plan.state
    assert told in plan.error
    assert 1 == plan.outcome.done
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(plan.id, BY)


def test_a_job_that_is_cancelled_is_not_done(stage) -> None:
    """Nobody takes it for one that has finished; and a dry run that has not is no plan."""
    plan = stage.ended(stage.look())
    redrive = stage.jobs.confirm(plan.id, BY)
    another = stage.look()
    for each in (redrive, another):
        cancelling = stage.jobs.cancel(each.id)
        assert cancelling is not None
        assert cancelling.state in {"cancelling", "cancelled"}
    for each in (redrive, another):
        assert "cancelled" == stage.ended(each).state
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(another.id, BY)


@pytest.mark.parametrize(
    ("facts", "complete"),
    [
        ({"stopped": "refused"}, False),
        ({"left": {"no_target": 1}}, False),
        ({"left": {"no_target": 1}, "dry_run": True}, True),
        ({"left": {"filtered": 1}, "stopped": "limit"}, True),
    ],
)
def test_a_job_that_leaves_something_is_incomplete(stage, facts, complete) -> None:
    """It is done where only that stays which was not meant."""
    stage.outcome = OrderOutcome.of(
        Redriven(**{"source": DLQ, "job": "", "dry_run": False, **facts})
    )
    assert ("done" if complete else "incomplete") == stage.ended(stage.look()).state


def test_only_some_run_at_a_time(stage) -> None:
    """Each reads or writes a whole topic."""
    first, *_ = [stage.look() for _ in range(4)]
    with pytest.raises(ConfigError, match="are running"):
        stage.look()
    stage.ended(first)
    assert "running" == stage.look().state


def test_a_job_shows_how_far_it_is(stage) -> None:
    """With its rate, and the time that is left."""
    job = stage.look()
    running = stage.jobs._running[job.id]
    for done in (0, 10, 20):
        running._first = (running._first or (0.0, 0))[0] - 1, 0
        running.tell(OrderOutcome(done=done))
    seen = stage.jobs.get(job.id)
    assert seen is not None
    assert 20 == seen.outcome.done
    assert 0 < seen.rate <= 20
    assert seen.seconds_left == 0  # there are more than were expected


def test_a_full_disk_hides_no_result_and_starts_nothing_twice(stage, monkeypatch) -> None:
    """What could not be stored is known until the console ends; what was confirmed, too."""
    plan = stage.ended(stage.look())
    save, writes = stage.records.save_job, iter([True])

    def full(facts: Any) -> None:
        if not next(writes, False):
            raise sqlite3.OperationalError("database or disk is full")
        save(facts)

    monkeypatch.setattr(stage.records, "save_job", full)
    redrive = stage.jobs.confirm(plan.id, BY)
    assert "done" == stage.ended(redrive).state
    assert ["done"] == [each.state for each in stage.jobs.all()]
    assert redrive.id == stage.jobs.confirm(plan.id, BY).id
    with pytest.raises(sqlite3.Error):
        stage.look()
    assert [True, False] == [each.dry_run for each in stage.held if each.released.is_set()]


def test_the_end_settles_what_is_under_way(stage) -> None:
    """All of it is cancelled, and waited for."""
    jobs = [stage.look() for _ in range(3)]
    threads = [stage.jobs._running[each.id].thread for each in jobs]
    stage.jobs.close()
    assert all(each.cancelled.is_set() for each in stage.held)
    assert not any(each.is_alive() for each in threads)
