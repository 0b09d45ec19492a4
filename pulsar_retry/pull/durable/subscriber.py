# ruff: noqa: SLF001 - a subscriber's inside is the other one's, too
"""The subscriber with durable lanes: one subscriber for the topic, and one for the stream."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import attrs
import pulsar

from pulsar_retry.consumer.access import SubscriberAccess
from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.handoff.initial_subscription import letter_client_of
from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.durable.audit import LogAudit
from pulsar_retry.pull.durable.diverting import Diverter
from pulsar_retry.pull.durable.gate import Gate
from pulsar_retry.pull.durable.log import ClaimLog
from pulsar_retry.pull.durable.settling import StreamSettler, TopicSettler
from pulsar_retry.pull.durable.stream import StreamKeeper
from pulsar_retry.pull.engine.ordered import OrderedLanes
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.health import Health
from pulsar_retry.pull.opening import Opened
from pulsar_retry.pull.options import Options
from pulsar_retry.pull.report import DRAIN, Report, StopMode
from pulsar_retry.pull.subscriber import Subscriber
from pulsar_retry.wire.lanes import LANE_ENTRY, LaneTopics

#: The options of `on_exhausted`.
PARK = "park"

#: How many times more messages of the stream may be in hand than of the topic. They only wait.
_TIMES_MORE = 10


class _LaneSubscriber(Subscriber):
    """What both have in common."""

    _claim_log: ClaimLog

    def _open(self) -> Opened | None:
        if self._options.callers is None:
            return super()._open()
        try:
            return self._subscribe()  # once: the caller waits
        except Exception as error:
            self._refusal = error
            raise

    def _lanes_of(self, access: SubscriberAccess, kind: pulsar.ConsumerType) -> OrderedLanes:
        """Return lanes that leave no message with the broker: it might come back too late."""
        lanes = OrderedLanes(
            attrs.evolve(self._options.lanes, overflow="block"),
            self._work_queue,
            access,
            kind,
            self._clock,
            leaves=False,
        )
        lanes.ticket = self._claim_log.ticket
        return lanes


class _StreamSubscriber(_LaneSubscriber):
    """Handles the messages of the stream, in order, and tries them again in place."""

    def __init__(self, client: Client, options: Options, log: ClaimLog) -> None:
        super().__init__(client, options)
        self._claim_log = log
        self._keeper: StreamKeeper | None = None

    def _settler_of(self, *arguments: Any, lanes: OrderedLanes | None, **named: Any) -> Settler:
        assert lanes is not None  # noqa: S101 - the type is Key_Shared
        settler = StreamSettler(*arguments, lanes=lanes, **named)
        name = self._options.consumer_name or ""
        keeper = StreamKeeper(self._claim_log, lanes, settler, name, self._clock)
        settler.keeper = self._keeper = keeper
        settler.gate = Gate(self._claim_log, self._work_queue, keeper.takes)
        settler.parks = self._options.on_exhausted == PARK
        return settler

    def _serve(self, opened: Opened) -> None:
        try:
            super()._serve(opened)
        finally:
            if self._keeper is not None:
                self._keeper.close()


class DurableSubscriber(_LaneSubscriber):
    """A `Subscriber` whose lanes are durable (``ordering="durable"``).

    It handles the messages of the topic. Those that fail, and their successors, go to the stream of
    the subscription, which another subscriber inside of this one handles, with workers of its own.
    """

    def __init__(self, client: Client, options: Options) -> None:
        super().__init__(client, options)
        self._topics = LaneTopics.of(options.topic, options.subscription)
        self._claim_log = ClaimLog(client, self._topics.log, self._clock)
        self._audit = LogAudit(self._claim_log, self._clock, self._end)
        self._diverter: Diverter | None = None
        self._stream: _StreamSubscriber | None = None

    # -- the engine -------------------------------------------------------------------------------

    def _subscribe(self) -> Opened:
        self._claim_log.open()
        return super()._subscribe()

    def _settler_of(self, *arguments: Any, lanes: OrderedLanes | None, **named: Any) -> Settler:
        assert lanes is not None  # noqa: S101 - the type is Key_Shared
        settler = TopicSettler(*arguments, lanes=lanes, **named)
        log, work_queue = self._claim_log, self._work_queue
        diverter = self._diverter = settler.diverter = Diverter(
            log,
            settler.access,
            work_queue,
            lanes,
            settler,
            stream=self._topics.stream,
            mark=self._mark,
            clock=self._clock,
        )
        settler.gate = Gate(log, work_queue, diverter.takes)
        settler.parks = self._options.on_exhausted == PARK
        settler.access.watch.counters.attach(diverter)
        return settler

    def _mark(self, key: str, entry: str) -> None:
        """Publish a mark to the stream."""
        producer = letter_client_of(self._client).create_producer(
            self._topics.stream, batching_enabled=False
        )
        try:
            producer.send(b"", partition_key=key, properties={LANE_ENTRY: entry})
        finally:
            producer.close()

    def _serve(self, opened: Opened) -> None:
        options, most = self._options, _TIMES_MORE * self._options.flow_control.max_messages
        access = SubscriberAccess(opened.consumer, options.codec, options.redact)
        stream = self._stream = _StreamSubscriber(
            self._client,
            attrs.evolve(
                options,
                topic=self._topics.stream,
                flow_control=attrs.evolve(options.flow_control, max_messages=most),
                lanes=attrs.evolve(options.lanes, max_parked=most),
                letter_topics=access.topics,
                initial_position=pulsar.InitialPosition.Earliest,
                retry_budget=None,
                breaker=None,
            ),
            self._claim_log,
        )
        stream._ending.add_done_callback(self._stream_ended)
        stream._begin(options.loop)
        try:
            stream._opened.wait()
            if stream._refusal is not None:
                self._refusal = stream._refusal  # for `start` to raise
                raise stream._refusal
            super()._serve(opened)
        finally:
            if (diverter := self._diverter) is not None:
                access.watch.counters.detach(diverter)
                diverter.close()
            if stream._stop is None:
                stream._ask("abandon", 0)
            stream._ended.wait()
        if self._report is not None and stream._report is not None:
            self._report = _sum_of(self._report, stream._report)

    def _stream_ended(self, _ended: Future[None]) -> None:
        """End this subscription with the error of the stream's."""
        if self._stream is not None and (reason := self._stream._reason) is not None:
            self._end(reason)

    def _end(self, reason: BaseException) -> None:
        if self._settler is not None:
            self._settler.fatal = self._settler.fatal or reason
        self._work_queue.notify()

    def _close(self, opened: Opened | None) -> None:
        try:
            super()._close(opened)
        finally:
            self._audit.close()
            self._claim_log.close()

    def _ask(self, mode: StopMode, timeout: Duration) -> None:
        super()._ask(mode, timeout)
        if self._stream is not None:  # what is in the stream needs no drain
            self._stream._ask("hand_back" if mode == DRAIN else mode, timeout)

    def _is_handling(self) -> bool:
        stream = self._stream
        return super()._is_handling() or (stream is not None and stream._is_handling())

    # -- while it runs ----------------------------------------------------------------------------

    def update_policy(self, retry_policy: RetryPolicy) -> None:
        """Use another policy for all later failures; see `Subscriber.update_policy`."""
        super().update_policy(retry_policy)
        if self._stream is not None:
            self._stream.update_policy(retry_policy)

    @property
    def health(self) -> Health:
        """The current state, and in words what is wrong."""
        health, stream = super().health, self._stream
        if stream is None or health.state not in {"running", "degraded"}:
            return health
        reasons = [health.reason] if health.reason else []
        if (other := stream.health).state != "running":
            reasons.append(f"the stream of held keys: {other.reason or other.state}")
        for verb, error in self._claim_log.troubles.copy().items():
            reasons.append(f"the log of the lanes cannot be {verb}: {error}")
        return Health("degraded", "; ".join(reasons)) if reasons else health

    @property
    def in_hand(self) -> tuple[int, int]:
        """How many messages, and how many bytes, are in hand, of the topic and of the stream."""
        (count, size), stream = super().in_hand, self._stream
        more, larger = (0, 0) if stream is None else stream.in_hand
        return count + more, size + larger


def _sum_of(report: Report, stream: Report) -> Report:
    counts = {
        field.name: getattr(report, field.name) + getattr(stream, field.name)
        for field in attrs.fields(Report)
        if field.name not in {"mode", "seconds"}
    }
    return attrs.evolve(report, **counts)
