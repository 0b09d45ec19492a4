"""Jobs: a dry run, then the work itself, after a confirmation. They are kept in the store."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
from _pulsar import PulsarException

from pulsar_retry.console.orders import Order, OrderOutcome, OrderWork
from pulsar_retry.console.store.records import Records
from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.ops.audit import Act, audited
from pulsar_retry.replay.cluster import Cluster

_log = logging.getLogger("pulsar_retry")

#: ``interrupted``: the console was killed while the job was running.
State = Literal["running", "cancelling", "done", "incomplete", "cancelled", "failed", "interrupted"]
RUNNING = frozenset({"running", "cancelling"})
RESUMABLE = frozenset({"cancelled", "failed", "incomplete", "interrupted"})

_AT_ONCE = 4
#: Seconds that all jobs together have at the end to settle their letters.
_PATIENCE = 40.0
#: A dry run may be confirmed for so many seconds.
_PLAN_HOLDS = 86_400.0
#: The rate is measured over about so many seconds.
_WINDOW = 10.0


@attrs.frozen(kw_only=True)
class Job:
    """A dry run, or the work itself, as it is now.

    Attributes:
        id: An id that cannot be guessed.
        order: What was ordered.
        dry_run: Whether it is a dry run.
        by: Who ordered it.
        began: When it began, in seconds since 1970.
        ended: When it ended; None if it runs, or was killed.
        updated: When this was true.
        state: Its state.
        outcome: The result so far.
        error: Why it failed.
        total: About how many letters there are to do; None if that is not known.
        rate: Letters per second, lately.
        can_cancel: Whether it can be cancelled.
        plan: For the work: the id of its dry run, or of the job that it continues.
        followed_by: The id of the job that this dry run, or this ended job, led to.
        audit: The id of the entry in the audit log.
    """

    id: str
    order: Order
    dry_run: bool
    by: str
    began: float
    ended: float | None = None
    updated: float = 0.0
    state: State = "running"
    outcome: OrderOutcome = attrs.field(factory=OrderOutcome)
    error: str = ""
    total: int | None = None
    rate: float = 0.0
    can_cancel: bool = True
    plan: str = ""
    followed_by: str = ""
    audit: str = ""

    @property
    def runs(self) -> bool:
        """Whether it is running."""
        return self.state in RUNNING

    @property
    def may_resume(self) -> bool:
        """Whether the same order can be carried out again, to continue it."""
        return not self.dry_run and self.state in RESUMABLE and not self.followed_by

    @property
    def seconds(self) -> float:
        """How long it took so far."""
        return max(0.0, (self.ended or self.updated) - self.began)

    @property
    def seconds_left(self) -> float | None:
        """How long it takes from now on, at its rate; None if that is not known."""
        if not self.runs or self.total is None or not self.rate:
            return None
        return max(0.0, self.total - self.outcome.done) / self.rate

    def facts(self) -> dict[str, Any]:
        """Return the job as JSON-compatible values."""
        plain = attrs.asdict(self, filter=attrs.filters.exclude("order"))
        return {
            **plain,
            "order": self.order.facts(),
            "verb": self.order.verb,
            "source": self.order.source,
        }

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Job:
        """Read what `facts` has returned."""
        names = {each.name for each in attrs.fields(cls)} - {"order", "outcome"}
        plain = {name: facts[name] for name in names & facts.keys()}
        order, outcome = Order.read(facts["order"]), OrderOutcome(**facts["outcome"])
        return cls(**plain, order=order, outcome=outcome)


class Jobs:
    """The jobs of a console. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        records: Records,
        *,
        audits: bool = True,
        changed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare, and mark the jobs of a process that was killed.

        Args:
            cluster: The cluster.
            records: Where jobs are kept.
            audits: Whether each job is written to the audit log of its namespace.
            changed: Called with the id of a job that has changed, and with its topic at its end.
        """
        self._cluster, self._records = cluster, records
        self._audits, self._changed = audits, changed
        self._running: dict[str, _Running] = {}
        self._unsaved: dict[str, Job] = {}
        self._lock = threading.Lock()
        records.interrupt()

    def look(self, order: Order, by: str, total: int | None = None) -> Job:
        """Start a dry run.

        Raises:
            ConfigError: a field is invalid, or too many jobs are running.
        """
        with self._lock:
            return self._start(order, by, dry_run=True, total=total)

    def confirm(self, plan: str, by: str) -> Job:
        """Start the work of a finished dry run. A second call returns the same job.

        Raises:
            ConfigError: there is no such dry run, it has not succeeded or is old, or too many jobs
                are running.
        """
        with self._lock:
            looked = self._get(plan)
            if (
                looked is None
                or not looked.dry_run
                or looked.state != "done"
                or time.time() - looked.began > _PLAN_HOLDS
            ):
                raise ConfigError("plan: expected a finished dry run; start a new one")
            return self._follow(looked, by, total=looked.outcome.done)

    def resume(self, job_id: str, by: str) -> Job:
        """Continue a job that has ended before it was done. A second call returns the same job.

        Raises:
            ConfigError: there is no such job, or too many are running.
        """
        with self._lock:
            ended = self._get(job_id)
            if ended is None or ended.dry_run or ended.state not in RESUMABLE:
                raise ConfigError("id: expected a job that has ended before it was done")
            return self._follow(ended, by, total=ended.total)

    def cancel(self, job_id: str) -> Job | None:
        """Let a job settle its letters in flight, and end; None if there is no such job."""
        with self._lock:
            running = self._running.get(job_id)
        if running is not None:
            running.cancel()
        return self.get(job_id)

    def get(self, job_id: str) -> Job | None:
        """Return a job; None if there is none, or if it is not kept any more."""
        with self._lock:
            return self._get(job_id)

    def all(self, *, most: int = 50, before: float | None = None) -> list[Job]:
        """Return the jobs, the latest first, without the dry runs."""
        found = [Job.read(each) for each in self._records.jobs(most=most, before=before)]
        with self._lock:
            return [self._known(each.id) or each for each in found]

    def close(self) -> None:
        """Cancel the running jobs, and wait until they have settled their letters."""
        with self._lock:
            running = list(self._running.values())
        for each in running:
            each.cancel()
        give_up = time.monotonic() + _PATIENCE
        for each in running:
            each.thread.join(max(0.1, give_up - time.monotonic()))

    def _get(self, job_id: str) -> Job | None:
        if (known := self._known(job_id)) is not None:
            return known
        facts = self._records.job(job_id)
        return None if facts is None else Job.read(facts)

    def _known(self, job_id: str) -> Job | None:
        """Return a job that is running, or that could not be stored."""
        running = self._running.get(job_id)
        return self._unsaved.get(job_id) if running is None else running.job

    def _follow(self, before: Job, by: str, total: int | None) -> Job:
        """Start the work after *before*, once."""
        if before.followed_by and (found := self._get(before.followed_by)):
            return found  # a second click, or a reload of the page
        job = self._start(before.order, by, dry_run=False, total=total, plan=before.id)
        self._store(attrs.evolve(before, followed_by=job.id))
        return job

    def _start(
        self, order: Order, by: str, *, dry_run: bool, total: int | None, plan: str = ""
    ) -> Job:
        target = f"{order.source} {order.subscription}".strip()
        act = Act(verb=order.verb, target=target, by=by, why=order.why or None, given=order.given())
        work = order.work(self._cluster, dry_run=dry_run)
        if len(self._running) >= _AT_ONCE:
            raise ConfigError(f"{_AT_ONCE} jobs are running: wait until one ends")
        now = time.time()
        job = Job(
            id=secrets.token_urlsafe(12),
            order=order,
            dry_run=dry_run,
            by=by,
            began=now,
            updated=now,
            total=total,
            can_cancel=work.can_cancel,
            plan=plan,
            audit="" if dry_run else act.job,
        )
        self._records.save_job(job.facts())
        running = _Running(job, work, act, carry_out=self._carry_out, keep=self._keep)
        self._running[job.id] = running
        running.thread.start()
        return job

    def _carry_out(self, running: _Running) -> OrderOutcome:
        """Do the work, within entries of the audit log."""
        job = running.job
        enabled = self._audits and not job.dry_run
        with audited(self._cluster, job.order.source, running.act, enabled=enabled) as record:
            done = running.work.run(running.tell)
            facts = done.facts()
            record({name: facts[name] for name in _RECORDED})
            return done

    def _store(self, job: Job) -> None:
        """Store a job; if that fails, it is known until the console ends, and the work goes on."""
        try:
            self._records.save_job(job.facts())
        except sqlite3.Error as error:
            if job.id not in self._unsaved:
                _log.error("the job %s could not be stored: %s", job.id, error)
            self._unsaved[job.id] = job
        else:
            self._unsaved.pop(job.id, None)

    def _keep(self, job: Job) -> None:
        """Store a job, and tell that it has changed."""
        self._store(job)
        if not job.runs:
            with self._lock:
                self._running.pop(job.id, None)
            if not job.dry_run:
                self._changed(job.order.source)
        self._changed(job.id)


_RECORDED = ("done", "left", "targets", "stopped", "notes")


class _Running:
    """A job with its thread."""

    def __init__(
        self,
        job: Job,
        work: OrderWork,
        act: Act,
        *,
        carry_out: Callable[[_Running], OrderOutcome],
        keep: Callable[[Job], None],
    ) -> None:
        self.job, self.work, self.act = job, work, act
        self._carry_out, self._keep = carry_out, keep
        self._first: tuple[float, int] | None = None
        self._lock = threading.Lock()
        # A daemon thread: a job may be killed at any time, so an exit need not wait for it.
        self.thread = threading.Thread(target=self._run, name="pulsar-retry-job", daemon=True)

    def cancel(self) -> None:
        """Say that it is cancelled, and let the work end."""
        if not self.job.can_cancel:
            return
        with self._lock:
            if self.job.state == "running":
                self.job = attrs.evolve(self.job, state="cancelling")
        self.work.cancel()

    def tell(self, so_far: OrderOutcome) -> None:
        """Take the state so far."""
        now = time.time()
        first = self._first
        if first is None or now - first[0] > 2 * _WINDOW:
            # Halfway into the window, so that the rate follows changes without jumping.
            self._first = first = (now, so_far.done) if first is None else self._middle
        self._middle = (now, so_far.done) if now - first[0] < _WINDOW else self._middle
        seconds = now - first[0]
        rate = (so_far.done - first[1]) / seconds if seconds > 0 else 0.0
        self._evolve(outcome=so_far, updated=now, rate=rate)

    _middle: tuple[float, int] = (0.0, 0)

    def _evolve(self, **facts: Any) -> None:
        with self._lock:
            self.job = attrs.evolve(self.job, **facts)
        self._keep(self.job)

    def _run(self) -> None:
        try:
            done = self._carry_out(self)
        except PulsarRetryError as error:
            self._fail(str(error))
        except PulsarException as error:
            self._fail(f"the broker was not reached, or refused the request: {error}")
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise
        else:
            state: State = "done" if done.is_complete else "incomplete"
            now = time.time()
            self._evolve(
                state="cancelled" if done.is_cancelled else state,
                outcome=done,
                ended=now,
                updated=now,
            )

    def _fail(self, why: str) -> None:
        now = time.time()
        self._evolve(state="failed", error=why, ended=now, updated=now)
