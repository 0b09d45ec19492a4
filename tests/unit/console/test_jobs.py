"""Dry runs, and the jobs that follow from them; nothing is really redriven."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from pulsar_retry.console.filtering import Query
from pulsar_retry.console.forms import JobForm
from pulsar_retry.console.jobs import Job, Jobs
from pulsar_retry.errors import ConfigError, RedriveError
from pulsar_retry.replay import Cluster, Redriven
from pulsar_retry.replay.redriving.report import Group
from support.waiting import eventually

DLQ = "persistent://public/default/orders-billing-DLQ"
WANTED = JobForm(source=DLQ, query=Query([("reason", "odd")]))
BY = "ada"


def redriven(count: int, **facts: Any) -> Redriven:
    """Return a result."""
    return Redriven(**{"source": DLQ, "job": "", "dry_run": False, "redriven": count, **facts})


class Held:
    """Work that goes on until it is released or cancelled."""

    job, source = "b1946ac92492", DLQ

    def __init__(self, dry_run: bool, stage: Stage) -> None:
        self.dry_run, self.fault, self.outcome = dry_run, stage.fault, stage.outcome
        self.released, self.cancelled = threading.Event(), threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()
        self.released.set()

    def run(self, tell: Callable[[Redriven], None]) -> Redriven:
        self.tell = tell
        tell(redriven(1))
        assert self.released.wait(120)
        if self.fault is not None:
            raise self.fault
        return redriven(2, stopped="cancelled") if self.cancelled.is_set() else self.outcome


class Stage:
    """Where work is made up."""

    def __init__(self) -> None:
        cluster = Cluster("pulsar://127.0.0.1:1")
        self.jobs = Jobs(cluster, audits=False)
        self.held: list[Held] = []
        self.fault: Exception | None = None
        self.outcome = redriven(2)

    def look(self) -> Job:
        """Start a dry run."""
        return self.jobs.look(WANTED, BY, 5)

    def ended(self, job: Job) -> Job:
        """Let everything go on, and return a job when it has ended."""
        running = self.jobs._running.get(job.id)
        for each in self.held:
            each.released.set()
        if running is not None:
            running[1].join(120)
        found = self.jobs.get(job.id)
        assert found is not None
        return found


@pytest.fixture
def stage(monkeypatch) -> Iterator[Stage]:
    """Give jobs whose work waits."""
    stage = Stage()

    def work(_form: JobForm, _cluster: Cluster, _by: str, *, dry_run: bool) -> Held:
        stage.held.append(Held(dry_run, stage))
        return stage.held[-1]

    monkeypatch.setattr(JobForm, "work", work)
    yield stage
    stage.jobs.close()


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
    assert [redrive.id, plan.id] == [each.id for each in stage.jobs.all()]


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
    assert 1 == plan.count
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
    stage.outcome = redriven(0, **facts)
    assert ("done" if complete else "incomplete") == stage.ended(stage.look()).state


def test_only_some_run_at_a_time(stage) -> None:
    """Each reads or writes a whole topic."""
    first, *_ = [stage.look() for _ in range(4)]
    with pytest.raises(ConfigError, match="are running"):
        stage.look()
    stage.ended(first)
    assert "running" == stage.look().state


def test_a_job_shows_how_far_it_is(stage, monkeypatch) -> None:
    """With its rate, and the time that is left."""
    now = [1000.0]
    monkeypatch.setattr("pulsar_retry.console.jobs.time.time", lambda: now[0])
    job = stage.look()
    eventually(lambda: stage.jobs.get(job.id).done is not None)
    assert stage.jobs.get(job.id).seconds_left is None
    tell, now[0] = stage.held[0].tell, 1002.0
    tell(redriven(3))
    seen = stage.jobs.get(job.id)
    assert (3, 1.0, 2.0) == (seen.count, seen.rate, seen.seconds_left)
    tell(redriven(20))
    assert 0 == stage.jobs.get(job.id).seconds_left  # there are more than were expected


def test_what_is_known_of_jobs_is_limited(stage, monkeypatch) -> None:
    """The oldest that has ended goes; of a result, the largest groups stay."""
    monkeypatch.setattr("pulsar_retry.console.jobs._MOST", 3)
    groups = tuple(Group("r", "E", f"f{each}", "m", 1, 0.0, 0.0, ()) for each in range(1000))
    stage.outcome = redriven(2, groups=groups)
    running = stage.look()
    first = stage.look()
    stage.held[1].released.set()
    eventually(lambda: "done" == stage.jobs.get(first.id).state)
    assert 50 == len(stage.jobs.get(first.id).done.groups)
    stage.look()
    stage.look()
    assert stage.jobs.get(first.id) is None
    assert stage.jobs.get(running.id) is not None


def test_the_end_settles_what_is_under_way(stage) -> None:
    """All of it is cancelled, and waited for."""
    jobs = [stage.look() for _ in range(3)]
    threads = [stage.jobs._running[each.id][1] for each in jobs]
    stage.jobs.close()
    assert all(each.cancelled.is_set() for each in stage.held)
    assert not any(each.is_alive() for each in threads)
