"""Redrive: publishes dead letters again, to the retry topic or another topic."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.errors import ConfigError, RedriveError
from pulsar_retry.policy.checks import Duration, number, seconds, whole
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.keeping import TargetKeeper
from pulsar_retry.replay.publishing import hand_off_of
from pulsar_retry.replay.reading import LetterCodecs
from pulsar_retry.replay.redriving.delivery import DeliveryWatch
from pulsar_retry.replay.redriving.judge import LetterJudge
from pulsar_retry.replay.redriving.patching import Patcher, PatchLike, PayloadPatch
from pulsar_retry.replay.redriving.report import WHY_NOT_SEEN, Redriven, first_of_each
from pulsar_retry.replay.redriving.run import RedriveWork, Run
from pulsar_retry.replay.redriving.source import (
    SUBSCRIPTION,
    Checkpoint,
    CheckpointStore,
    backlog_of,
    check_exists,
    ends,
    find_subscription,
    keeping_subscription,
)
from pulsar_retry.replay.redriving.survey import count_left, survey_redrive
from pulsar_retry.replay.redriving.targets import Keep, RedriveTargets, checked_target
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.dead_letter import RETRY, RedriveProperties
from pulsar_retry.wire.names import Naming, NamingLike, TopicName, kind_of, logical
from pulsar_retry.wire.owner import Owner, full_name

#: How often a message may be redriven, as in Spark's sink.
MAX_REDRIVES = 5

#: How many letters are in flight at a time.
_IN_FLIGHT = 1000
#: Seconds to wait until the broker has removed the consumer of a killed process.
_BUSY_PATIENCE = 10.0

_ALL = Filter()


class Redrive:
    """Publishes the letters of a dead-letter topic again, so that they are retried.

    Each letter is published, then its receipt is awaited, and then it is acknowledged in the
    dead-letter topic. So nothing is lost if the process or the broker dies at any point. If a
    redrive is killed or cancelled, the same redrive continues it when it is run again, from any
    machine. Only letters of the last moment may be published twice; both copies have the same
    ``DEDUPE_ID``.

    The payload, key, ordering key, event time, schema and the message's own properties are kept.
    Attempts start anew. ``REDRIVE_COUNT`` grows by one, and `max_redrives` ends the cycle of
    messages that fail again and again. Letters that are left out stay in the topic, and so do those
    that die during the redrive.
    """

    _discards = False

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
        job_key: str | None = None,
    ) -> None:
        """Prepare a redrive; nothing is opened.

        Args:
            source: The dead-letter topic, or a subscription, which stands for its dead-letter
                topic.
            to: ``"retry"``: the retry topic of the subscription that failed, so that no other
                subscription gets the message. ``"origin"``: the topic that the message came from,
                for all of its subscriptions. Or the name of a topic.
            cluster: The cluster. None means that of the subscription, or else that of the
                environment.
            topic: The topic whose letters are redriven. None: the letters and the name of *source*
                say it. If they do not, such as for a dead-letter topic with a name of your own,
                both *topic* and *subscription* are needed.
            subscription: The subscription whose letters are redriven; None: as for *topic*.
            dlq_subscription: The subscription of the dead-letter topic through which letters are
                read. None means `pulsar-retry`, or else the only one. If there is no subscription,
                `pulsar-retry` is created at the earliest letter.
            naming: How the topics of letters are named; a `Subscription` knows it.
            where: Which letters are redriven.
            limit: How many letters are redriven at most. After a kill it may be more, by those of
                the last half second.
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
            job_key: The identity of the redrive: a redrive with the same one continues where this
                one was killed. None derives it from the arguments that select letters and their
                target, without those for the speed.

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
        self._limit = None if limit is None else whole("limit", limit, 1)
        self._rate = math.inf if rate is None else _checked_rate(rate)
        self._max_redrives = whole("max_redrives", max_redrives, 0)
        self._keep = (keep_failure, keep_attempts)
        self._any_topic = any_topic
        self._patch = None if patch is None else PayloadPatch.of(patch)
        self._dry_run = dry_run
        self._within = math.inf if within is None else seconds("within", within)
        self._job_key = job_key
        self._cancelled = threading.Event()

    @property
    def source(self) -> str:
        """The full name of the dead-letter topic."""
        return self._source

    def cancel(self) -> None:
        """Stop: letters in flight are settled, then `run` returns. Any thread may call it."""
        self._cancelled.set()

    def run(self, progress: Callable[[Redriven], None] | None = None) -> Redriven:
        """Redrive, and return the result. Blocks.

        Args:
            progress: Called on this thread about twice a second, with the state so far.

        Returns:
            What was redriven, or for a dry run what would be.

        Raises:
            ConfigError: the source is not a dead-letter or retry topic, and *any_topic* is not set.
            RedriveError: the redrive could not begin, or the dead-letter topic cannot be read any
                more.
            AdminError: the REST API is unreachable, or refuses a request.
            pulsar.PulsarException: the broker is unreachable, or refuses a request.
        """
        tell = progress or (lambda _: None)
        started = time.monotonic()
        with self._cluster.admin() as admin, contextlib.closing(self._cluster.client()) as client:
            check_exists(admin, self._source)
            through = find_subscription(admin, self._source, self._dlq_subscription)
            self._check_holds_letters(through)
            if self._dry_run:
                done = self._look(admin, client, through, tell)
            else:
                through = through or keeping_subscription(admin, self._source)
                done = self._work(admin, client, through, tell)
        return attrs.evolve(done, seconds=time.monotonic() - started)

    def _check_holds_letters(self, through: str | None) -> None:
        """Check that the messages of this subscription are letters, or that *any_topic* is set."""
        is_ours = kind_of(logical(self._source)) is not None or through == SUBSCRIPTION
        if not (is_ours or self._any_topic):
            taken = f"the messages that its subscription {through} has not acknowledged"
            raise ConfigError(
                f"{self._source} does not have the name of a dead-letter or retry topic; a redrive "
                f"would take {taken if through else 'its messages'}: set any_topic (--any-topic) "
                "if you want that"
            )

    # -- dry run -----------------------------------------------------------------------------

    def _look(
        self,
        admin: AdminClient,
        client: Client,
        through: str | None,
        tell: Callable[[Redriven], None],
    ) -> Redriven:
        patcher = self._patcher(client)
        judge = self._judge(admin, "", patcher, lambda _topic, _owner: None)
        partitions = admin.topics.partition_names(self._source)
        limit = self._limit or math.inf
        backlog = backlog_of(admin, self._source, through)
        found = survey_redrive(
            client,
            admin,
            partitions,
            through,
            judge=judge,
            limit=limit,
            within=self._within,
            cancelled=self._cancelled,
            tell=lambda so_far: tell(attrs.evolve(so_far, backlog=backlog)),
        )
        if patcher is not None:
            found = attrs.evolve(found, patched=patcher.changed, diffs=tuple(patcher.diffs))
        return attrs.evolve(found, source=self._source, backlog=backlog)

    def _patcher(self, client: Client) -> Patcher | None:
        return None if self._patch is None else Patcher(self._patch, LetterCodecs(client).of)

    def _judge(
        self, admin: AdminClient, job: str, patcher: Patcher | None, keep: Keep
    ) -> LetterJudge:
        targets = RedriveTargets(admin, self._to, self._source, self._owner, self._naming, keep)
        return LetterJudge(
            where=self._where,
            targets=None if self._discards else targets,
            written=RedriveProperties(job, self._to, self._naming, *self._keep),
            source=self._source,
            max_redrives=self._max_redrives,
            patcher=patcher,
        )

    # -- doing it ---------------------------------------------------------------------------------

    def _work(
        self, admin: AdminClient, client: Client, through: str, tell: Callable[[Redriven], None]
    ) -> Redriven:
        with contextlib.ExitStack() as stack:
            consumer = stack.enter_context(_only_consumer(client, self._source, through))
            # This consumer is the only one now, so no other process writes a checkpoint.
            partitions = admin.topics.partition_names(self._source)
            store = CheckpointStore(admin, partitions[0], through)
            checkpoint, resumed = self._begin(admin, partitions, store.load())
            store.save(attrs.evolve(checkpoint, exact=False))  # inexact until the run ends
            hand_off = stack.enter_context(hand_off_of(client, max_pending=_IN_FLIGHT))
            keeper = TargetKeeper(admin)
            keep = partial(keeper.keep, hand_off.producers)
            judge = self._judge(admin, checkpoint.job, self._patcher(client), keep)

            def report(run: Run) -> Redriven:
                done = self._report(run, judge, checkpoint, resumed=resumed)
                problems = first_of_each([*keeper.problems, *done.problems])
                return attrs.evolve(done, problems=problems)

            work = RedriveWork(
                consumer=consumer,
                hand_off=hand_off,
                judge=judge,
                checkpoint=checkpoint,
                rate=self._rate,
                limit=self._limit or math.inf,
                is_over=DeliveryWatch(admin, through, checkpoint.ends).is_over,
                save=store.save,
                progress=lambda run: tell(report(run)),
            )
            run = Run(work, self._cancelled)
            run.run()
            hand_off.producers.check_kept()
            store.save(run.remains())
            if run.stopped is None:
                missed = count_left(admin, client, through, checkpoint.ends, run.has_seen)
                run.left += missed
                run.problems |= {WHY_NOT_SEEN[each]: None for each in missed}
            return report(run)

    def _report(
        self, run: Run, judge: LetterJudge, checkpoint: Checkpoint, *, resumed: bool
    ) -> Redriven:
        return Redriven(
            source=self._source,
            job=checkpoint.job,
            dry_run=False,
            resumed=resumed,
            redriven=run.redriven,
            at_least=not checkpoint.exact,
            left=dict(run.left),
            targets=dict(run.targets),
            patched=run.patched,
            stopped=run.stopped,
            problems=first_of_each([*judge.problems, *run.problems]),
        )

    def _begin(
        self, admin: AdminClient, partitions: list[str], found: Checkpoint | None
    ) -> tuple[Checkpoint, bool]:
        """Return the checkpoint to work from, and whether it is from an unfinished redrive."""
        command = self._command()
        if found is not None and found.command == command:
            return found, True
        return Checkpoint(command, uuid.uuid4().hex[:12], ends(admin, partitions)), False

    def _command(self) -> str:
        """Return the identity of the redrive, which is the same for the same arguments."""
        owner = (self._owner.topic, self._owner.subscription)
        what = [self._to, owner, self._naming.value, self._limit, self._max_redrives, self._keep]
        text = self._job_key or json.dumps(
            [*what, attrs.asdict(self._where)], default=str, sort_keys=True
        )
        if self._patch is not None:
            text += self._patch.text
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


class Discard(Redrive):
    """Acknowledges letters of a dead-letter topic, so that they are gone. It cannot be undone.

    It has the filters, limits, rates and the dry run of a redrive, and continues like one.
    """

    _discards = True

    def __init__(self, source: str, *, job_key: str = "", **options: Any) -> None:
        """Prepare; nothing is opened.

        Args:
            source: The dead-letter topic.
            job_key: As in `Redrive`.
            options: As in `Redrive`: cluster, dlq_subscription, where, limit, rate, any_topic,
                dry_run, within.

        Raises:
            ConfigError: an argument is invalid.
        """
        super().__init__(source, job_key=f"discard {job_key}", **options)


@contextlib.contextmanager
def _only_consumer(client: Client, topic: str, subscription: str) -> Iterator[Any]:
    """Yield the only consumer of the dead-letter topic's subscription, as a raw consumer.

    It is Exclusive, so that neither another redrive nor another consumer takes its letters. With
    this type the broker also has no limit for letters that are delivered and not acknowledged.
    """
    give_up = time.monotonic() + _BUSY_PATIENCE
    while True:
        try:
            bare = BareClient.subscribe(
                client,
                topic,
                subscription,
                pulsar.ConsumerType.Exclusive,
                initial_position=pulsar.InitialPosition.Earliest,
                consumer_name="pulsar-retry-redrive",
                batch_index_ack_enabled=True,
            )
            break
        except pulsar.ConsumerBusy:
            if time.monotonic() > give_up:
                raise RedriveError(
                    f"the subscription {subscription} of {topic} has a consumer: stop it, or name "
                    "another subscription (--dlq-subscription)"
                ) from None
            time.sleep(0.2)
    try:
        yield bare._consumer  # noqa: SLF001 - raw messages need less time
    finally:
        bare.close()


def _checked_rate(rate: float) -> float:
    if not 0 < number(rate) < math.inf:
        raise ConfigError.bad("rate", rate, "messages per second, more than 0")
    return float(rate)
