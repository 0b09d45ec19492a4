"""Redrive: publishes dead letters again, to the retry topic or another topic, or discards them."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.errors import AdminError, ConfigError, PulsarRetryError, shown
from pulsar_retry.policy.checks import Duration, number, seconds, whole
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.publishing import hand_off_of
from pulsar_retry.replay.reading import LetterCodecs, read_letters
from pulsar_retry.replay.redriving.aftermath import Aftermath
from pulsar_retry.replay.redriving.judge import LetterJudge
from pulsar_retry.replay.redriving.patching import Patcher, PatchLike, checked_patch
from pulsar_retry.replay.redriving.report import (
    CANCELLED,
    FILTERED,
    LIMIT,
    MAY_STAY,
    REFUSED,
    SAMPLE,
    UNREADABLE,
    WHY_NOT_SEEN,
    WHY_UNREADABLE,
    WHY_WITH_BATCH,
    WITH_BATCH,
    Groups,
    Redriven,
    Tally,
    first_of_each,
)
from pulsar_retry.replay.redriving.run import IN_FLIGHT, Run
from pulsar_retry.replay.redriving.source import (
    backlog_of,
    check_exists,
    check_holds_letters,
    consumer_of,
    ends,
    fetched_ahead,
    find_subscription,
    holds_retries,
    keeping_subscription,
    operator_name,
    who_reads,
)
from pulsar_retry.replay.redriving.states import Source
from pulsar_retry.replay.redriving.targets import (
    DISCARD,
    RedriveTargets,
    TakeTarget,
    TargetKeeper,
    checked_target,
)
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.dead_letter import ORIGIN, RETRY, RedriveProperties
from pulsar_retry.wire.envelope import read_envelope
from pulsar_retry.wire.names import Naming, NamingLike, TopicName, logical
from pulsar_retry.wire.owner import Owner, full_name

#: How often a message may be redriven, as in Spark's sink.
MAX_REDRIVES = 5

#: Seconds between two reports of a dry run's progress.
_TICK = 0.5
#: Seconds between two looks at what became of letters: the first, and the longest.
_LOOK, _SELDOM = 0.5, 5.0
#: Seconds without a consumer after which nobody is said to read letters: one may connect again.
_ALONE = 10.0

_ALL = Filter()


class Redrive:
    """Publishes the letters of a dead-letter topic again, so that they are retried.

    Each letter is published, then its receipt is awaited, and then it is acknowledged in the
    dead-letter topic. So nothing is lost if the process or the broker dies at any point. If a
    redrive is killed or cancelled, run it again, from any machine: it takes what is left. Only
    letters of the last moment may be published twice; both copies have the same ``DEDUPE_ID``.

    The payload, key, ordering key, event time, schema and the message's own properties are kept.
    Attempts start anew. ``REDRIVE_COUNT`` grows by one, and `max_redrives` ends the cycle of
    messages that fail again and again. Letters that are left out stay in the topic, and so do those
    that die during the redrive.
    """

    def __init__(
        self,
        source: str | Subscription,
        to: str = RETRY,
        *,
        cluster: Cluster | None = None,
        topic: str | None = None,
        subscription: str | None = None,
        dlq_subscription: str | None = None,
        naming: NamingLike = Naming.PULSAR,
        where: Filter = _ALL,
        limit: int | None = None,
        rate: float | None = None,
        max_redrives: int = MAX_REDRIVES,
        keep_failure: bool = False,
        keep_attempts: bool = False,
        any_topic: bool = False,
        patch: PatchLike | None = None,
        dry_run: bool = False,
        within: Duration | None = None,
        wait: Duration = 0,
        by: str | None = None,
    ) -> None:
        """Prepare a redrive; nothing is opened.

        Args:
            source: The dead-letter topic, or a subscription, which stands for its dead-letter
                topic.
            to: ``"retry"``: the retry topic of the subscription that failed, so that no other
                subscription gets the message. ``"origin"``: the topic that the message came from,
                for all of its subscriptions. Or the name of a topic. Or `DISCARD`: the letters are
                only acknowledged, so that they are gone, which cannot be undone.
            cluster: The cluster. None means that of the subscription, or else that of the
                environment.
            topic: The topic whose letters are redriven. None: the letters and the name of *source*
                say it. If they do not, such as for a dead-letter topic with a name of your own,
                both *topic* and *subscription* are needed. Not with `DISCARD`.
            subscription: The subscription whose letters are redriven; None: as for *topic*.
            dlq_subscription: The subscription of the dead-letter topic through which letters are
                read. None means `pulsar-retry`, or else the only one. If there is no subscription,
                `pulsar-retry` is created at the earliest letter.
            naming: How the topics of letters are named; a `Subscription` knows it.
            where: Which letters are redriven.
            limit: How many letters are redriven at most, by this run.
            rate: Messages per second; None for no limit.
            max_redrives: A letter that was redriven this often stays.
            keep_failure: Keep the properties that describe the failure.
            keep_attempts: Keep the number of attempts, instead of starting anew.
            any_topic: Accept any topic as *source*. Otherwise it must be a dead-letter or retry
                topic: by its name in any dialect, as the topic of a `Subscription`, or because
                letters are read through `pulsar-retry`. Messages that are taken through another
                subscription are lost for the application that owns that subscription.
            patch: What is changed in the JSON payload of each letter: a JSON merge patch (an
                object, RFC 7396), or the text of one. A letter whose payload is not JSON, or has
                another schema, stays. The original payloads are not kept.
            dry_run: Only report. Nothing is published, acknowledged or created.
            within: For how long a dry run reads at most, in seconds or as a timedelta. If letters
                are left then, its report says so (``sample``). None: it reads all.
            wait: For how long to watch what becomes of the letters after the last one was
                published, in seconds or as a timedelta. It ends when all of them are handled or
                dead, no consumer is connected for ten seconds to the topics in which they wait, or
                `cancel` is called. With 0, the report has one look.
            by: Who does it; None: the user and the host. Others who want the same letters are told.

        Raises:
            ConfigError: an argument is invalid.
        """
        if isinstance(source, Subscription):
            self._cluster = cluster or source.cluster
            self._source = source.dead_letter_topic
            self._owner = Owner(full_name(source.topic), source.name, source.retry_letter_topic)
            naming, any_topic = source.naming, True
        else:
            self._cluster = cluster or Cluster.from_environment()
            self._source = str(TopicName.parse(source, "source"))
            main = None if topic is None else logical(str(TopicName.parse(topic)))
            self._owner = Owner(main, subscription)
        self._to = checked_target(to, self._source)
        self._dlq_subscription = dlq_subscription
        self._naming = Naming.of(naming)
        self._where = where
        self._limit = math.inf if limit is None else whole("limit", limit, 1)
        self._rate = math.inf if rate is None else _checked_rate(rate)
        self._max_redrives = whole("max_redrives", max_redrives, 0)
        self._keep = (keep_failure, keep_attempts)
        self._any_topic = any_topic
        if patch is not None and to == DISCARD:
            raise ConfigError("patch: letters that are discarded are not published")
        if to == DISCARD and (topic or subscription):
            raise ConfigError("topic, subscription: letters are discarded whosever they are")
        self._patch = None if patch is None else checked_patch(patch)
        self._dry_run = dry_run
        self._within = math.inf if within is None else seconds("within", within)
        self._wait = seconds("wait", wait)
        self._by = by or operator_name()
        self._job = uuid.uuid4().hex[:12]
        self._cancelled = threading.Event()

    @property
    def source(self) -> str:
        """The full name of the dead-letter topic."""
        return self._source

    @property
    def verb(self) -> str:
        """``redrive`` or ``discard``."""
        return "discard" if self._to == DISCARD else "redrive"

    @property
    def done_word(self) -> str:
        """``redriven`` or ``discarded``."""
        return "discarded" if self._to == DISCARD else "redriven"

    @property
    def job(self) -> str:
        """The id of the redrive, which its messages carry as ``REDRIVE_ID``."""
        return self._job

    def cancel(self) -> None:
        """Stop: letters in flight are settled, then `run` returns. Any thread may call it.

        If all letters are settled, it ends only the watching (`wait`).
        """
        self._cancelled.set()

    def run(self, progress: Callable[[Redriven], None] | None = None) -> Redriven:
        """Redrive, and return the result. Blocks.

        Args:
            progress: Called on this thread about twice a second, with the state so far.

        Returns:
            What was redriven, or for a dry run what would be. If an error ends a redrive after
            letters were redriven, this has it as a problem, and is not complete.

        Raises:
            ConfigError: the source is not a dead-letter or retry topic, and *any_topic* is not set.
            RedriveError: the redrive could not begin, or the dead-letter topic cannot be read.
            AdminError: the REST API is unreachable, or refuses a request.
            pulsar.PulsarException: the broker is unreachable, or refuses a request.
        """
        tell = progress or (lambda _: None)
        started = time.monotonic()
        with self._cluster.admin() as admin, contextlib.closing(self._cluster.client()) as client:
            check_exists(admin, self._source)
            through = find_subscription(admin, self._source, self._dlq_subscription)
            if not self._any_topic:
                check_holds_letters(self._source, through)
            if self._dry_run:
                done = self._look(admin, client, through, tell)
            else:
                through = through or keeping_subscription(admin, self._source)
                done = self._work(admin, client, through, tell)
        return attrs.evolve(done, seconds=time.monotonic() - started)

    # -- dry run -----------------------------------------------------------------------------

    def _look(
        self,
        admin: AdminClient,
        client: Client,
        through: str | None,
        tell: Callable[[Redriven], None],
    ) -> Redriven:
        tally, patcher = Tally(), self._patcher(client)
        judge = self._judge(admin, tally, patcher, lambda topic, _owner: _why_not(client, topic))
        backlog = backlog_of(admin, self._source, through)
        has_retries = holds_retries(admin, self._source, through)
        reader = through and who_reads(admin, self._source, through, is_retry=has_retries)
        if reader:
            tally.problems[f"letters are taken through {through} now: {reader}"] = None
        groups, others = Groups(), Groups()

        def report() -> Redriven:
            return self._report(
                tally,
                groups=groups.all(),
                others=() if tally.redriven else others.all(),
                diffs=() if patcher is None else tuple(patcher.diffs),
                backlog=backlog,
            )

        def unreadable(_topic: str, _place: object) -> None:
            tally.left[UNREADABLE] += 1
            tally.problems[WHY_UNREADABLE] = None

        partitions = admin.topics.partition_names(self._source)
        give_up = time.monotonic() + self._within
        next_tick = time.monotonic() + _TICK
        for raw, _, position in read_letters(client, admin, partitions, through, unreadable):
            verdict = judge.judge(raw, str(position))
            failed = str(position), raw.publish_timestamp()
            if isinstance(verdict, str):
                tally.left[verdict] += 1
                if verdict == FILTERED and not tally.redriven:
                    others.add(read_envelope(raw.properties()), *failed)
            elif tally.redriven >= self._limit:
                tally.stopped = LIMIT
                break
            else:
                tally.moved(verdict.letter, verdict.owner)
                groups.add(read_envelope(raw.properties()), *failed)
            now = time.monotonic()
            if self._cancelled.is_set() or now > give_up:
                tally.stopped = CANCELLED if self._cancelled.is_set() else SAMPLE
                break
            if now > next_tick:
                next_tick = now + _TICK
                tell(report())
        return report()

    def _patcher(self, client: Client) -> Patcher | None:
        return None if self._patch is None else Patcher(self._patch, LetterCodecs(client).of)

    def _judge(
        self, admin: AdminClient, tally: Tally, patcher: Patcher | None, take: TakeTarget
    ) -> LetterJudge:
        targets = RedriveTargets(admin, self._to, self._source, self._owner, self._naming, take)
        return LetterJudge(
            where=self._where,
            targets=None if self._to == DISCARD else targets,
            written=RedriveProperties(self._job, self._to, self._naming, *self._keep),
            source=self._source,
            max_redrives=self._max_redrives,
            patcher=patcher,
            problems=tally.problems,
            clock=time.time,
        )

    def _report(self, tally: Tally, **facts: Any) -> Redriven:
        return tally.report(
            source=self._source,
            job="" if self._dry_run else self._job,
            verb=self.done_word,
            dry_run=self._dry_run,
            **facts,
        )

    # -- doing it ---------------------------------------------------------------------------------

    def _work(
        self, admin: AdminClient, client: Client, through: str, tell: Callable[[Redriven], None]
    ) -> Redriven:
        tally = Tally()
        aftermath, keeper = Aftermath(admin, client, self._job), TargetKeeper(admin)
        has_retries = holds_retries(admin, self._source, through)
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(contextlib.ExitStack())

            def open_(more: int = 1) -> Any:
                opened.close()
                return opened.enter_context(
                    consumer_of(
                        *(admin, client, self._source, through),
                        verb=self.verb,
                        job=self._job,
                        by=self._by,
                        rate=self._rate,
                        more=more,
                        is_retry=has_retries,
                    )
                )

            consumer = open_()
            partitions = admin.topics.partition_names(self._source)
            last = ends(admin, partitions)
            source = Source(admin, client, through, last)
            hand_off = stack.enter_context(
                hand_off_of(client, max_pending=IN_FLIGHT, natively=not has_retries)
            )

            def take(topic: str, owner: Owner) -> None:
                is_retry = self._to == RETRY
                keeper.keep(hand_off.producers, topic, owner.subscription if is_retry else None)
                if self._to in {RETRY, ORIGIN}:
                    self._watch(aftermath, topic, owner)

            def report() -> Redriven:
                return self._report(tally, doubts=tuple(keeper.problems))

            run = Run(
                *(consumer, hand_off, self._judge(admin, tally, self._patcher(client), take)),
                source,
                tally=tally,
                rate=self._rate,
                limit=self._limit,
                progress=lambda: tell(report()),
                cancelled=self._cancelled,
                ahead=fetched_ahead(self._rate, len(partitions)) * len(partitions),
                open_again=open_,
                read=partial(read_letters, client, admin, partitions, through)
                if has_retries
                else None,
            )
            try:
                run.run()
                opened.close()  # otherwise it still fetches, and what follows can take minutes
                _tell_of_batches(admin, tally, source.kept_by_batches(run.states))
                if tally.stopped is None:
                    missed = source.left(run.states)
                    tally.left += missed
                    tally.problems |= {WHY_NOT_SEEN[each]: None for each in missed}
            except (PulsarRetryError, pulsar.PulsarException) as error:
                if not tally.redriven:
                    raise
                tally.stopped = REFUSED
                tally.problems[shown(error)] = None
            hand_off.producers.check_kept()
        return self._follow(aftermath, report(), tell)

    def _watch(self, aftermath: Aftermath, topic: str, owner: Owner) -> None:
        """Watch what becomes of letters that go to *topic*."""
        main, subscription = str(owner.topic), str(owner.subscription)
        letters = self._naming.topics(main, subscription)
        for each in (topic, owner.retry or letters.retry):
            aftermath.watch(each, subscription)
        for each in (self._source, letters.dead_letter):
            aftermath.watch(each)

    def _follow(
        self, aftermath: Aftermath, done: Redriven, tell: Callable[[Redriven], None]
    ) -> Redriven:
        """Watch what becomes of the letters, until none waits or nobody reads them, for a while."""
        if self._to not in {RETRY, ORIGIN} or not done.targets or done.doubts:
            return done
        alone, pause = time.monotonic(), _LOOK
        give_up = alone + self._wait
        try:
            while True:
                became = aftermath.look(done.redriven)
                done = attrs.evolve(done, became=became)
                tell(done)
                now = time.monotonic()
                left, unread = give_up - now, aftermath.unread() if became.waiting else None
                alone = now if unread is None else alone
                is_over = not became.waiting or left <= 0 or now - alone >= _ALONE
                if is_over or self._cancelled.wait(min(left, pause)):
                    problems = [*done.problems, *([unread] if unread else [])]
                    return attrs.evolve(done, problems=first_of_each(problems))
                pause = min(_SELDOM, pause * 1.5)
        except (AdminError, pulsar.PulsarException) as error:
            unknown = f"what became of the letters is not known: {error}"
            return attrs.evolve(done, problems=first_of_each([*done.problems, unknown]))


def _tell_of_batches(admin: AdminClient, tally: Tally, count: int) -> None:
    """Record that *count* letters are done, but stay if the broker acknowledges whole batches."""
    if not count:
        return
    try:
        settings = admin.broker_configuration()
    except AdminError:
        tally.problems[MAY_STAY.format(count)] = None
        return
    if settings.get("acknowledgmentAtBatchIndexLevelEnabled") == "false":
        tally.left[WITH_BATCH] += count
        tally.problems[WHY_WITH_BATCH] = None


def _why_not(client: Client, topic: str) -> str | None:
    """Return why this role cannot publish to a topic that exists; None if it can."""
    try:
        BareClient.create_producer(client, topic).close()
    except pulsar.AuthorizationError:
        return f"this role may not publish to {topic}"
    except pulsar.PulsarException:
        return None  # for example another schema; a letter has its own
    return None


def _checked_rate(rate: float) -> float:
    if not 0 < number(rate) < math.inf:
        raise ConfigError.bad("rate", rate, "messages per second, more than 0")
    return float(rate)
