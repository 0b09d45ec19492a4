"""Redrives from the console: first a dry run, then, after a confirmation, the redrive itself."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Literal

import attrs
from _pulsar import PulsarException

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.ops.formatting import moment
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import Redriven
from pulsar_retry.replay.redriving.run import CANCELLED
from pulsar_retry.wire.letter_topics import kind_of

State = Literal["running", "done", "incomplete", "cancelled", "failed"]

_TO = ("retry", "origin")
#: How many jobs are kept, and how many run at a time.
_KEPT, _AT_ONCE = 50, 4
#: Seconds that each job has at the end to settle its letters.
_PATIENCE = 40.0


@attrs.frozen(kw_only=True)
class RedriveRequest:
    """The fields of the redrive form, as they were typed; an empty field is not set."""

    source: str
    to: str = "retry"
    reason: str = ""
    error: str = ""
    fingerprint: str = ""
    key: str = ""
    since: str = ""
    until: str = ""
    limit: str = ""
    rate: str = ""
    dlq_subscription: str = ""
    any_topic: str = ""

    @classmethod
    def of(cls, form: Mapping[str, str], source: str) -> RedriveRequest:
        """Read the fields from a form; other fields are ignored."""
        names = {each.name for each in attrs.fields(cls)} - {"source"}
        return cls(source=source, **{name: form[name].strip() for name in names & set(form)})

    def where(self) -> Filter:
        """Return the filter for letters.

        Raises:
            ConfigError: a time is invalid.
        """
        return where_of(attrs.asdict(self))

    def redrive(self, cluster: Cluster, *, dry_run: bool) -> Redrive:
        """Return the redrive for these fields; nothing is opened.

        Raises:
            ConfigError: a field is invalid.
        """
        if self.to not in _TO:
            raise ConfigError.bad("to", self.to, " or ".join(_TO))
        if kind_of(self.source) == "retry":
            raise ConfigError.bad("topic", self.source, "a dead-letter topic")
        return Redrive(
            self.source,
            self.to,
            cluster=cluster,
            dlq_subscription=self.dlq_subscription or None,
            where=self.where(),
            limit=_number("limit", self.limit, int),
            rate=_number("rate", self.rate, float),
            any_topic=bool(self.any_topic),
            dry_run=dry_run,
            job_key=self._job_key(),
        )

    def _job_key(self) -> str:
        """Return a key that is the same for the same fields. A text such as "2h" keeps its key."""
        what = attrs.asdict(self, filter=attrs.filters.exclude("rate"))
        return json.dumps(what, sort_keys=True)


def where_of(form_fields: Mapping[str, str]) -> Filter:
    """Return the filter for letters; empty fields are ignored.

    Raises:
        ConfigError: a time is invalid.
    """

    def one(name: str) -> tuple[str, ...]:
        text = form_fields.get(name, "").strip()
        return (text,) if text else ()

    return Filter(
        reason=one("reason"),
        error=one("error"),
        fingerprint=one("fingerprint"),
        key=one("key"),
        since=moment("since", form_fields.get("since", "").strip() or None),
        until=moment("until", form_fields.get("until", "").strip() or None),
    )


def _number(name: str, text: str, kind: Callable[[str], float]) -> int | None:
    if not text:
        return None
    try:
        # `Redrive` checks the rest: its limit is an int, and its rate an int or a float.
        return kind(text)  # type: ignore[return-value]
    except ValueError:
        raise ConfigError.bad(name, text, "a number") from None


@attrs.frozen
class JobProgress:
    """The progress of a job.

    Attributes:
        state: ``running``, ``done``, ``incomplete`` if letters that should be redriven are left,
            ``cancelled`` or ``failed``. A dry run is never incomplete.
        result: The result so far.
        error: Why it failed.
    """

    state: State = "running"
    result: Redriven | None = None
    error: str = ""


def _state(done: Redriven) -> State:
    if done.stopped == CANCELLED:
        return "cancelled"
    return "done" if done.dry_run or done.is_complete else "incomplete"


class Job:
    """A dry run or a redrive, on a background thread. Thread-safe.

    Attributes:
        id: An id that cannot be guessed.
        wanted: The request.
        dry_run: Whether it is a dry run.
        progress: The progress.
    """

    def __init__(self, wanted: RedriveRequest, redrive: Redrive, *, dry_run: bool) -> None:
        self.id = secrets.token_urlsafe(12)
        self.wanted, self.dry_run = wanted, dry_run
        self.progress = JobProgress()
        self._redrive = redrive
        # A daemon thread: a redrive may be killed at any time, so an exit need not wait for it.
        self.thread = threading.Thread(target=self._run, name="pulsar-retry-redrive", daemon=True)

    def cancel(self) -> None:
        """Settle the letters in flight, and end."""
        self._redrive.cancel()

    def _run(self) -> None:
        try:
            done = self._redrive.run(self._record_progress)
        except PulsarRetryError as error:
            self._fail(str(error))
        except PulsarException as error:
            self._fail(f"the broker was not reached, or refused the request: {error}")
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise
        else:
            self.progress = JobProgress(_state(done), done)

    def _record_progress(self, so_far: Redriven) -> None:
        self.progress = JobProgress("running", so_far)

    def _fail(self, why: str) -> None:
        self.progress = JobProgress("failed", self.progress.result, why)


class Jobs:
    """The dry runs and redrives of a console. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._jobs: dict[str, Job] = {}
        self._confirmed: dict[str, str] = {}
        self._lock = threading.Lock()

    def look(self, wanted: RedriveRequest) -> Job:
        """Start a dry run.

        Raises:
            ConfigError: a field is invalid, or too many jobs are running.
        """
        job = Job(wanted, wanted.redrive(self._cluster, dry_run=True), dry_run=True)
        with self._lock:
            self._start(job)
        return job

    def confirm(self, plan: str) -> Job:
        """Start the redrive of a finished dry run. A second call returns the same job.

        Raises:
            ConfigError: there is no such dry run, it has not succeeded, or too many jobs are
                running.
        """
        with self._lock:
            looked = self._jobs.get(plan)
            if looked is None or not looked.dry_run or looked.progress.state != "done":
                raise ConfigError("plan: expected a finished dry run; start a new one")
            if plan in self._confirmed:  # a second click, or a reload of the page
                return self._jobs[self._confirmed[plan]]
            redrive = looked.wanted.redrive(self._cluster, dry_run=False)
            job = Job(looked.wanted, redrive, dry_run=False)
            self._start(job)
            self._confirmed[plan] = job.id
        return job

    def get(self, job_id: str) -> Job | None:
        """Return a job; None if it does not exist any more."""
        with self._lock:
            return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Return the redrives, the latest first, without the dry runs."""
        with self._lock:
            return [each for each in reversed(self._jobs.values()) if not each.dry_run]

    def close(self) -> None:
        """Cancel the running jobs, and wait until they have settled their letters."""
        with self._lock:
            running = [each for each in self._jobs.values() if each.progress.state == "running"]
        for each in running:
            each.cancel()
        for each in running:
            each.thread.join(_PATIENCE)

    def _start(self, job: Job) -> None:
        running = {each.id for each in self._jobs.values() if each.progress.state == "running"}
        if len(running) >= _AT_ONCE:
            raise ConfigError(f"{_AT_ONCE} redrives or dry runs are running: wait until one ends")
        ended = [each for each in self._jobs if each not in running]
        for each in ended[: max(0, len(self._jobs) - _KEPT + 1)]:
            del self._jobs[each]
            # A plan is at least as old as its redrive.
            self._confirmed = {p: j for p, j in self._confirmed.items() if each not in {p, j}}
        self._jobs[job.id] = job
        job.thread.start()
