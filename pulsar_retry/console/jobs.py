"""Jobs: a dry run, then the work itself, after a confirmation.

Jobs are in memory. What outlives the console is in Pulsar: the letters that are left, and the audit
log.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Any, Literal

import attrs
from _pulsar import PulsarException

from pulsar_retry.console.forms import JobForm
from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.ops.audit import Act, audited_redrive
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import Redriven

_log = logging.getLogger("pulsar_retry")

State = Literal["running", "cancelling", "done", "incomplete", "cancelled", "failed"]
RUNNING = frozenset({"running", "cancelling"})

#: How many run at a time, and how many are known.
_AT_ONCE, _MOST = 4, 1000
#: Seconds that all jobs together have at the end to settle their letters.
_PATIENCE = 40.0
#: A dry run may be confirmed for so many seconds.
_PLAN_HOLDS = 86_400.0
#: How many groups of a result are kept, the largest first.
_MOST_GROUPS = 50


@attrs.frozen(kw_only=True)
class Job:
    """A dry run, or the work itself, as it is now.

    Attributes:
        id: An id that cannot be guessed.
        form: What was asked for.
        dry_run: Whether it is a dry run.
        by: Who asked for it.
        began: When it began, in seconds since 1970.
        ended: When it ended; None if it runs.
        state: Its state.
        done: The result so far; None if there is none yet.
        error: Why it failed.
        total: About how many letters there are to do; None if that is not known.
        rate: Letters per second since it began.
        followed_by: The id of the job that this dry run led to.
        audit: The id of the entry in the audit log.
    """

    id: str
    form: JobForm
    dry_run: bool
    by: str
    began: float
    ended: float | None = None
    state: State = "running"
    done: Redriven | None = None
    error: str = ""
    total: int | None = None
    rate: float = 0.0
    followed_by: str = ""
    audit: str = ""

    @property
    def runs(self) -> bool:
        """Whether it is running."""
        return self.state in RUNNING

    @property
    def awaits_answer(self) -> bool:
        """Whether it is a dry run that can be confirmed."""
        is_plan = self.dry_run and self.state == "done" and self.count > 0
        return is_plan and not self.followed_by and time.time() - self.began < _PLAN_HOLDS

    @property
    def is_unfinished(self) -> bool:
        """Whether the same form can be carried out again, to continue it."""
        return not self.dry_run and self.state in {"cancelled", "failed", "incomplete"}

    @property
    def seconds(self) -> float:
        """How long it took so far."""
        return max(0.0, (self.ended or time.time()) - self.began)

    @property
    def count(self) -> int:
        """How many letters it has moved, or would move."""
        return 0 if self.done is None else self.done.redriven

    @property
    def seconds_left(self) -> float | None:
        """How long it takes from now on, at its rate; None if that is not known."""
        if not self.runs or self.total is None or not self.rate:
            return None
        return max(0.0, self.total - self.count) / self.rate


class Jobs:
    """The jobs of a console. Thread-safe."""

    def __init__(self, cluster: Cluster, *, audits: bool = True) -> None:
        """Prepare.

        Args:
            cluster: The cluster.
            audits: Whether each job is written to the audit log of its namespace.
        """
        self._cluster, self._audits = cluster, audits
        self._jobs: dict[str, Job] = {}
        self._running: dict[str, tuple[Redrive, threading.Thread]] = {}
        self._lock = threading.RLock()

    def look(self, form: JobForm, by: str, total: int | None = None) -> Job:
        """Start a dry run.

        Raises:
            ConfigError: a field is invalid, or too many jobs are running.
        """
        return self._start(form, by, dry_run=True, total=total)

    def confirm(self, plan: str, by: str) -> Job:
        """Start the work of a finished dry run. A second call returns the same job.

        Raises:
            ConfigError: there is no such dry run, it has not succeeded or is old, or too many jobs
                are running.
        """
        with self._lock:
            looked = self.get(plan)
            if looked is None or not (
                looked.awaits_answer or (looked.dry_run and looked.followed_by)
            ):
                raise ConfigError("plan: expected a finished dry run; start a new one")
            found = self._jobs.get(looked.followed_by)
            if found is not None:
                return found  # a second click, or a reload of the page
            job = self._start(looked.form, by, dry_run=False, total=looked.count)
            self._update(plan, followed_by=job.id)
            return job

    def cancel(self, job_id: str) -> Job | None:
        """Let a job settle its letters in flight, and end; None if there is no such job."""
        with self._lock:
            job, running = self._jobs.get(job_id), self._running.get(job_id)
            if job is None or running is None:
                return job
            self._jobs[job_id] = job = attrs.evolve(job, state="cancelling")
        running[0].cancel()
        return job

    def get(self, job_id: str) -> Job | None:
        """Return a job; None if there is none, or if it is not known any more."""
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Return the jobs, the latest first."""
        with self._lock:
            return list(self._jobs.values())[::-1]

    def close(self) -> None:
        """Cancel the running jobs, and wait until they have settled their letters."""
        with self._lock:
            running = dict(self._running)
        for each in running:
            self.cancel(each)
        give_up = time.monotonic() + _PATIENCE
        for _, thread in running.values():
            thread.join(max(0.1, give_up - time.monotonic()))

    def _start(self, form: JobForm, by: str, *, dry_run: bool, total: int | None) -> Job:
        work = form.work(self._cluster, by, dry_run=dry_run)
        act = Act(
            verb=form.verb,
            target=form.source,
            by=by,
            why=form.why or None,
            given=form.given(),
            job=work.job,
        )
        job = Job(
            id=secrets.token_urlsafe(12),
            form=form,
            dry_run=dry_run,
            by=by,
            began=time.time(),
            total=total,
            audit="" if dry_run else work.job,
        )
        # A daemon thread: a job may be killed at any time, so an exit need not wait for it.
        thread = threading.Thread(
            target=self._run, args=(job, work, act), name="pulsar-retry-job", daemon=True
        )
        with self._lock:
            if len(self._running) >= _AT_ONCE:
                raise ConfigError(f"{_AT_ONCE} jobs are running: wait until one ends")
            if len(self._jobs) >= _MOST:
                del self._jobs[next(each for each in self._jobs if each not in self._running)]
            self._jobs[job.id] = job
            self._running[job.id] = work, thread
        thread.start()
        return job

    def _run(self, job: Job, work: Redrive, act: Act) -> None:
        """Do the work, within entries of the audit log. It is the target of a thread."""
        first: tuple[float, int] | None = None

        def tell(so_far: Redriven) -> None:
            nonlocal first
            now = time.time()
            first = first or (now, so_far.redriven)
            rate = (so_far.redriven - first[1]) / max(0.1, now - first[0])
            self._update(job.id, done=so_far, rate=rate)

        enabled = self._audits and not job.dry_run
        state: State
        error, done = "", None
        try:
            done = audited_redrive(self._cluster, work, act, tell, enabled=enabled)
        except PulsarRetryError as fault:
            state, error = "failed", str(fault)
        except PulsarException as fault:
            state = "failed"
            error = f"the broker was not reached, or refused the request: {fault}"
        except Exception as fault:  # noqa: BLE001 - whoever looks at the job is told
            state, error = "failed", f"{type(fault).__name__}: {fault}"
            _log.exception("a job of the console failed")
        else:
            is_complete = done.dry_run or done.is_complete
            state = "done" if is_complete else "incomplete"
            state = "cancelled" if done.stopped == "cancelled" else state
        with self._lock:
            self._running.pop(job.id, None)
            kept = self._jobs[job.id].done if done is None else done
            self._update(job.id, state=state, error=error, done=kept, ended=time.time())

    def _update(self, job_id: str, **facts: Any) -> None:
        """Change what is known of a job."""
        if (done := facts.get("done")) is not None:
            groups, others = done.groups[:_MOST_GROUPS], done.others[:_MOST_GROUPS]
            facts["done"] = attrs.evolve(done, groups=groups, others=others)
        with self._lock:
            if job_id in self._jobs:
                self._jobs[job_id] = attrs.evolve(self._jobs[job_id], **facts)
