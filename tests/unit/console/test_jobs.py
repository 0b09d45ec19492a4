"""Dry runs, and the redrives that follow from them; nothing is really redriven."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pulsar
import pytest

from pulsar_retry.console.jobs import Job, Jobs, RedriveRequest, where_of
from pulsar_retry.errors import ConfigError, RedriveError
from pulsar_retry.replay import Cluster, Redriven

DLQ = "persistent://public/default/orders-billing-DLQ"
WANTED = RedriveRequest(source=DLQ)


class Held:
    """A redrive that goes on until it is released or cancelled."""

    def __init__(self, dry_run: bool, fault: Exception | None) -> None:
        self.dry_run, self.fault = dry_run, fault
        self.released, self.cancelled = threading.Event(), threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()
        self.released.set()

    def run(self, progress: Callable[[Redriven], None]) -> Redriven:
        progress(Redriven(source=DLQ, job="", dry_run=self.dry_run, redriven=1))
        assert self.released.wait(30)
        if self.fault is not None:
            raise self.fault
        stopped = "cancelled" if self.cancelled.is_set() else None
        return Redriven(source=DLQ, job="", dry_run=self.dry_run, redriven=2, stopped=stopped)


class Stage:
    """Where redrives are made up."""

    def __init__(self) -> None:
        self.jobs = Jobs(Cluster("pulsar://127.0.0.1:1"))
        self.held: list[Held] = []
        self.fault: Exception | None = None

    def redrive(self, _wanted: RedriveRequest, _cluster: Cluster, *, dry_run: bool) -> Any:
        self.held.append(Held(dry_run, self.fault))
        return self.held[-1]

    def ended(self, job: Job) -> Job:
        """Let everything go on, and return a job when it has ended."""
        for each in self.held:
            each.released.set()
        job.thread.join(30)
        return job


@pytest.fixture
def stage(monkeypatch) -> Iterator[Stage]:
    """Give jobs whose redrives wait."""
    stage = Stage()

    def redrive(wanted: RedriveRequest, cluster: Cluster, *, dry_run: bool) -> Any:
        return stage.redrive(wanted, cluster, dry_run=dry_run)

    monkeypatch.setattr(RedriveRequest, "redrive", redrive)
    yield stage
    stage.jobs.close()


def test_a_plan_is_confirmed_once(stage) -> None:
    """When it is done; then the same confirmation is the same redrive."""
    plan = stage.jobs.look(WANTED)
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(plan.id)
    assert "done" == stage.ended(plan).progress.state

    redrive = stage.jobs.confirm(plan.id)
    assert redrive is stage.jobs.confirm(plan.id)
    assert [True, False] == [each.dry_run for each in stage.held]
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(redrive.id)
    assert [redrive] == stage.jobs.all()


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
    plan = stage.ended(stage.jobs.look(WANTED))
    assert "failed" == plan.progress.state
    assert told in plan.progress.error
    assert plan.progress.result is not None
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(plan.id)


def test_a_job_that_is_cancelled_is_not_done(stage) -> None:
    """Nobody takes it for one that has finished; and a dry run that has not is no plan."""
    plan = stage.ended(stage.jobs.look(WANTED))
    redrive = stage.jobs.confirm(plan.id)
    another = stage.jobs.look(WANTED)
    redrive.cancel()
    another.cancel()
    for each in (redrive, another):
        assert "cancelled" == stage.ended(each).progress.state
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(another.id)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"stopped": "failure_ratio"}, "incomplete"),
        ({"left": {"no_target": 1}}, "incomplete"),
        ({"left": {"no_target": 1}, "dry_run": True}, "done"),
        ({"left": {"filtered": 1}, "stopped": "limit"}, "done"),
    ],
)
def test_a_job_that_leaves_something_is_incomplete(facts, state, monkeypatch) -> None:
    """It is done where only that stays which was not meant."""
    done = Redriven(**{"source": DLQ, "job": "", "dry_run": False, **facts})

    class Ended:
        def run(self, _progress: Callable[[Redriven], None]) -> Redriven:
            return done

    monkeypatch.setattr(RedriveRequest, "redrive", lambda *_, **__: Ended())
    job = Jobs(Cluster("pulsar://127.0.0.1:1")).look(WANTED)
    job.thread.join(30)
    assert state == job.progress.state


def test_only_some_run_at_a_time(stage) -> None:
    """Each reads or writes a whole topic."""
    first, *_ = [stage.jobs.look(WANTED) for _ in range(4)]
    with pytest.raises(ConfigError, match="are running"):
        stage.jobs.look(WANTED)
    stage.ended(first)
    assert "running" == stage.jobs.look(WANTED).progress.state


def test_old_jobs_are_forgotten_and_running_ones_are_not(stage) -> None:
    """Memory is finite; a plan goes before the redrive that it has led to."""
    held = stage.jobs.look(WANTED)
    plan = None
    for number in range(70):
        job = stage.jobs.look(WANTED)
        stage.held[-1].released.set()
        job.thread.join(30)
        plan = job if number == 0 else plan
    assert plan is not None
    assert stage.jobs.get(held.id) is held
    assert stage.jobs.get(plan.id) is None
    with pytest.raises(ConfigError, match="dry run"):
        stage.jobs.confirm(plan.id)


def test_the_end_settles_what_is_under_way(stage) -> None:
    """All of it is cancelled, and waited for."""
    jobs = [stage.jobs.look(WANTED) for _ in range(3)]
    stage.jobs.close()
    assert all(each.cancelled.is_set() for each in stage.held)
    assert not any(each.thread.is_alive() for each in jobs)


def test_wishes_are_a_filter() -> None:
    """What is empty is not asked for."""
    form = {"reason": " odd ", "key": "", "since": "2026-01-31T12:00:00Z", "source": "x", "z": "y"}
    wanted = RedriveRequest.of(form, DLQ)
    assert DLQ == wanted.source
    where = wanted.where()
    assert (("odd",), ()) == (where.reason, where.key)
    assert datetime(2026, 1, 31, 12, tzinfo=UTC) == where.since
    assert where_of({}).takes_all
