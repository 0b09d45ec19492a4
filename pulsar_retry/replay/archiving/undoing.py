"""Undoes an edit: brings the originals back, and takes the edited copies back where they wait.

A copy that a consumer has handled cannot be taken back; the report says how many there are. If the
command is killed, the same command continues.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.errors import RedriveError
from pulsar_retry.replay.archiving.archiving import Archiving, Restoring
from pulsar_retry.replay.archiving.copies import EditSurvey, survey_edit
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.operator_name import operator_name
from pulsar_retry.replay.redriving.redrive import only_consumer
from pulsar_retry.replay.redriving.report import COPY, REFUSED, first_of_each
from pulsar_retry.replay.redriving.source import check_exists, find_subscription
from pulsar_retry.replay.waiting.waiting import WaitingLetters
from pulsar_retry.wire.archive import ARCHIVED_EDIT, ArchiveNote, archive_of
from pulsar_retry.wire.edited import EDITED_JOB
from pulsar_retry.wire.names import TopicName, kind_of


@attrs.frozen(kw_only=True)
class Undone:
    """What an undo has done, or would do.

    Attributes:
        source: The dead-letter topic.
        job: The id of the command, as it was given.
        dry_run: Whether nothing was changed.
        edited: How many originals the archive had.
        restored: How many of them are in the dead-letter topic again, or would be.
        waiting: How many edited copies waited in a retry topic, and are taken back.
        dead_again: How many edited copies were dead again, and are archived.
        handled: How many edited copies are gone: a consumer has handled them, or has them in hand.
        elsewhere: How many edited copies are in topics from which none can be taken back.
        stopped: Why it ended early, as in `Redriven`; None if all is done.
        problems: What is not certain, or why originals stay in the archive, in words.
    """

    source: str
    job: str
    dry_run: bool
    edited: int = 0
    restored: int = 0
    waiting: int = 0
    dead_again: int = 0
    handled: int = 0
    elsewhere: Mapping[str, int] = attrs.field(factory=dict)
    stopped: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all originals are in the dead-letter topic."""
        return self.stopped is None and self.restored == self.edited

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        return {**attrs.asdict(self), "problems": list(self.problems)}


class Undo:
    """Brings back the originals of letters that a redrive has edited.

    Copies that still wait in a retry topic are taken back first, as `retry cancel` does it, and
    copies that are dead again are archived. Then the originals are published to the dead-letter
    topic, with their receipts, and acknowledged in the archive.
    """

    def __init__(
        self,
        source: str,
        job: str,
        *,
        cluster: Cluster | None = None,
        by: str | None = None,
        why: str | None = None,
        command: str | None = None,
        dlq_subscription: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Prepare; nothing is opened.

        Args:
            source: The dead-letter topic.
            job: The id of the redrive (``REDRIVE_ID``), or of its command in the audit log.
            cluster: The cluster; None means that of the environment.
            by: Who undoes it, for the copies that are archived; None for the user and the host of
                the process.
            why: The reason; None if there is none.
            command: The id of this command; None for a new one.
            dlq_subscription: The subscription of the topic through which the letters were taken;
                None means ``pulsar-retry``, or else the only one.
            dry_run: Only report.

        Raises:
            ConfigError: the topic has an invalid name.
        """
        self.source = str(TopicName.parse(source, "source"))
        self._job, self._dry_run, self._through = job, dry_run, dlq_subscription
        self._note = ArchiveNote(
            archived_as="archived",
            by=by or operator_name(),
            at=datetime.now(UTC),
            why=why or f"undo of {job}",
            job=command or uuid.uuid4().hex[:12],
        )
        self._cluster = cluster or Cluster.from_environment()
        self._cancelled = threading.Event()
        self._step: Archiving | Restoring | None = None

    def cancel(self) -> None:
        """Stop after the letters in flight. Any thread may call it."""
        self._cancelled.set()
        if self._step is not None:
            self._step.cancel()

    def run(self, progress: Callable[[int, int | None], None] = lambda _done, _of: None) -> Undone:
        """Undo the edit, and return the result. Blocks.

        Args:
            progress: Called with the number of restored letters, and of all.

        Raises:
            RedriveError: the archive has no originals of this job, a topic is missing, or a redrive
                takes letters from the dead-letter topic.
            PulsarRetryError: copies that wait could not be taken back.
            AdminError: the REST API is unreachable, or refuses a request.
            pulsar.PulsarException: the broker is unreachable, or refuses a request.
        """
        with self._opened(alone=not self._dry_run) as (client, admin):
            seen = survey_edit(client, admin, self.source, self._job, self._through)
        if not seen.targets:
            raise RedriveError(
                f"{archive_of(self.source)} has no originals that the redrive {self._job} has "
                "edited, or all of them are restored"
            )
        done = self._planned(seen)
        if self._dry_run:
            return done
        problems: list[str] = []
        waiting = 0
        for target, subscription in seen.subscriptions.items():
            for each in seen.jobs:
                report = WaitingLetters(
                    self._cluster,
                    target,
                    subscription=subscription,
                    where=Filter(properties={EDITED_JOB: each}),
                ).cancel(attrs.evolve(self._note, archived_as="cancelled"))
                waiting += report.count
                problems += report.warnings
        late = max(0, len(seen.waiting) - waiting)  # handled meanwhile
        done = attrs.evolve(
            done, waiting=done.waiting - late, handled=done.handled + late, restored=0
        )
        for each in seen.jobs if seen.dead else ():
            self._do(self._archiving(each))
        with self._opened(alone=True) as (client, admin):
            there = seen.there
            if there:  # a redrive may have gone on in between, and has taken them since
                there = survey_edit(client, admin, self.source, self._job, self._through).there
            done = self._restore(seen, there, done, problems, progress)
        return attrs.evolve(done, problems=first_of_each(problems))

    @contextlib.contextmanager
    def _opened(self, *, alone: bool) -> Iterator[tuple[Client, AdminClient]]:
        """Yield clients. If *alone*, no redrive takes letters from the topic meanwhile.

        A redrive archives the original of a letter while that is still in the topic. An original
        that is in both is removed from the archive, which must not happen if the redrive takes the
        letter after that.
        """
        with (
            self._cluster.admin() as admin,
            contextlib.closing(self._cluster.client()) as client,
            contextlib.ExitStack() as stack,
        ):
            check_exists(admin, self.source)
            through = find_subscription(admin, self.source, self._through)
            if alone and through is not None:
                stack.enter_context(only_consumer(client, self.source, through))
            yield client, admin

    def _restore(
        self,
        seen: EditSurvey,
        there: set[str],
        done: Undone,
        problems: list[str],
        progress: Callable[[int, int | None], None],
    ) -> Undone:
        """Bring the originals back, and return the result with them."""
        total = len(seen.targets)
        for each in seen.jobs:
            if self._cancelled.is_set():
                return attrs.evolve(done, stopped="cancelled")
            so_far = done.restored
            step = self._restoring(each, frozenset(there))
            back = self._do(step, functools.partial(_tell, progress, so_far, total))
            problems += back.problems
            restored = done.restored + back.redriven + back.left.get(COPY, 0)
            done = attrs.evolve(
                done,
                restored=min(restored, total),
                stopped=done.stopped or back.stopped or (None if back.is_complete else REFUSED),
            )
        return done

    def _do(self, step: Any, tell: Callable[[int], None] = lambda _: None) -> Any:
        self._step = step
        if self._cancelled.is_set():
            step.cancel()
        return step.run(lambda so_far: tell(so_far.redriven))

    def _archiving(self, job: str) -> Archiving:
        return Archiving(
            self.source,
            self._note,
            cluster=self._cluster,
            dlq_subscription=self._through,
            where=Filter(properties={EDITED_JOB: job}),
            any_topic=True,
            job_key=json.dumps(["undo", "copies", job]),
        )

    def _restoring(self, job: str, there: frozenset[str]) -> Restoring:
        return Restoring(
            self.source,
            there=there,
            cluster=self._cluster,
            where=Filter(properties={ARCHIVED_EDIT: job}),
            job_key=json.dumps(["undo", job]),
        )

    # -- looking ----------------------------------------------------------------------------------

    def _planned(self, seen: EditSurvey) -> Undone:
        """Return what would be done."""
        known = seen.waiting | seen.dead | seen.taken_back
        places = seen.targets.keys()
        others = Counter(
            seen.targets[each]
            for each in places - known - seen.there
            if kind_of(seen.targets[each]) != "retry"
        )
        back = len((seen.taken_back - seen.dead) & places)
        return Undone(
            source=self.source,
            job=self._job,
            dry_run=self._dry_run,
            edited=len(places),
            restored=len(places),
            waiting=len(seen.waiting) + back,
            dead_again=len(seen.dead),
            handled=len(places - known - seen.there) - others.total(),
            elsewhere=dict(others),
        )


def _tell(
    progress: Callable[[int, int | None], None], before: int, total: int, restored: int
) -> None:
    progress(before + restored, total)
