"""Where each row goes, when, and with which properties. Pure.

The rules are those of the consumer's letters: the same decision about retrying, and the same
property names. The row's own headers win over the properties in `Route.defaults`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import repeat

import attrs
import pyarrow as pa

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import MAX_DELAY
from pulsar_retry.policy.outcomes import exhausted
from pulsar_retry.wire import properties as wire
from pulsar_retry.wire.dead_letter import dedupe_id as redriven_id
from pulsar_retry.wire.dead_letter import next_redrive
from pulsar_retry.wire.names import TopicName, logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.frames.batch import (
    Decision,
    Frame,
    Origin,
    Wait,
    is_usual,
    own_origin,
    read_frame,
    read_odd,
)
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.options import SinkOptions, SinkTargets
from pulsar_retry_spark.schemas import TopicSchema
from pulsar_retry_spark.sink.values import RowSchemas, Versions

RETRY = "retry"
DEAD_LETTER = "dead_letter"

#: How many reasons are counted separately; the others are counted together.
_MAX_REASONS = 1000
OTHER_REASONS = "(other)"

#: topic, payload (None for a tombstone), key, properties, event time (ms, or None), delivery time
#: (ms since 1970, or 0 for at once), the most bytes on the wire, ordering key, schema.
Row = tuple[
    str,
    bytes | None,
    str | None,
    dict[str, str],
    int | None,
    int,
    int,
    bytes | None,
    TopicSchema | None,
]

#: The most bytes that a message and each of its properties take on the wire beside their contents.
_MESSAGE_ROOM, _PROPERTY_ROOM = 64, 16

#: Bytes reserved for the properties that name the task.
_TASK_ROOM = 1024

#: Headers that no longer apply when a dead letter is brought back: the earlier retry topic, and the
#: earlier redrive with its origin.
_STALE = frozenset({wire.RETRY_TOPIC, wire.REDRIVEN_FROM, wire.REDRIVE_ID})

_MAX_DELAY_MS = round(MAX_DELAY * 1000)
_MAX_ATTEMPT = 2**31 - 1  # Java reads an int

_NO_WAIT: Wait = (None, None)
_NOWHERE: Origin = (None, None, None)

#: Properties that a row may add to those of its route, beside texts and headers.
_OWN_PROPERTIES = (
    wire.REAL_TOPIC,
    wire.ORIGIN_MESSAGE_ID,
    wire.ORIGIN_MESSAGE_ID_OLD,
    wire.FAILURE_SOURCE,
    wire.DEDUPE_ID,
)


@attrs.define
class Route:
    """What rows of one action, attempt and topic have in common.

    Attributes:
        topic: The full name of the topic.
        action: `RETRY` or `DEAD_LETTER`.
        delay: Milliseconds of delay for a row that names no delay itself.
        size: The most bytes that the route adds to a message on the wire.
        defaults: Properties for a row whose headers do not have them.
        fixed: Properties that every row has.
        rows: The number of rows that have taken this route.
        delayed: Whether rows that name no delay themselves are delayed.
        properties: `defaults` and `fixed` together.
    """

    topic: str
    action: str
    delay: int
    size: int
    defaults: dict[str, str]
    fixed: dict[str, str]
    rows: int = 0
    delayed: bool = attrs.field(init=False)
    properties: dict[str, str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.delayed = self.action == RETRY and self.delay > 0
        self.properties = self.defaults | self.fixed


class Router:
    """Turns the rows of one task into messages, and counts them.

    Attributes:
        targets: Where rows go.
        routes: The routes, by the decisions that led to them.
        reasons: The number of rows for each reason; "" for none.
        oversize: The number of rows that are sent in chunks.
        over_redriven: The number of rows that were brought back `max_redrives` times already, and
            stay dead letters.
        payload_bytes: Bytes of all payloads.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: Columns,
        targets: SinkTargets,
        task: Mapping[str, str],
        clock: Callable[[], float],
        *,
        versions: Versions = lambda _topic, _version: None,
    ) -> None:
        """Make a router.

        *targets* are the targets of the options, with old-style names where such topics exist.
        *task* are the properties that describe this task. *clock* returns seconds since 1970.
        *versions* looks the schemas up that rows were read with.
        """
        self._schemas = RowSchemas(options, columns, versions)
        self._options = options
        self._columns = columns
        self.targets = targets
        self._recipient: Recipient | None = None
        if targets.topic is not None and targets.subscription is not None:
            topics = (targets.topic,)
            self._recipient = Recipient.of(topics, targets.subscription, targets.retry)
        self._task = dict(task)
        self._clock = clock
        self.routes: dict[Decision, Route] = {}
        self.reasons: Counter[str] = Counter()
        self.oversize = 0
        self.over_redriven = 0
        self.payload_bytes = 0

    @property
    def most_bytes(self) -> int:
        """The most bytes that a row may take on the wire."""
        return self._options.max_message_bytes

    def usual(self, batch: pa.RecordBatch) -> Frame | None:
        """Return the columns of *batch*; None if its rows have to be turned one by one."""
        if self._schemas.are_used or not is_usual(batch, self._columns):
            return None
        return read_frame(batch, self._columns)

    def count(self, frame: Frame) -> None:
        """Count the rows for each reason, and the bytes of all payloads.

        The number of reasons has a bound, in case each row has a different one.
        """
        self.payload_bytes += sum(frame.payload_sizes)
        for given, rows in frame.reasons().items():
            reason = given or ""
            known = reason in self.reasons or len(self.reasons) < _MAX_REASONS
            self.reasons[reason if known else OTHER_REASONS] += rows

    def room(self, names: Iterable[str]) -> int:
        """Return the most bytes that the names of a row's own properties take."""
        return _size_of(dict.fromkeys((*names, *_OWN_PROPERTIES), ""))

    def route(self, decision: Decision) -> Route:
        """Return the route for a decision.

        Raises:
            PulsarFailuresError: the row's action or attempt is invalid, or it has no target topic.
        """
        return self.routes.get(decision) or self._decide(decision)

    def now(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:  # noqa: C901 - calls cost time here
        """Yield a message for each row, in the order of the rows.

        Raises:
            PulsarFailuresError: a row's action, attempt or delay is invalid, it has no target
                topic, it is too big, or it was brought back too often and there is no dead-letter
                topic.
        """
        frame, odd = read_frame(batch, self._columns), read_odd(batch, self._columns)
        self.count(frame)
        names, texts = tuple(frame.properties), map(frame.listed, frame.properties.values())
        same = frame.count if len(frame.decisions) == 1 else 1
        routes, limit = self.routes, self._options.max_message_bytes
        read_back, of_source = self._columns.read_back, self._columns.of_source
        room, recipient = self.room(names), self._recipient
        for (
            decision,
            payload,
            key,
            own,
            head,
            origin,
            dedupe_id,
            wait,
            event_time,
            size,
            ordering_key,
            letter,
            schema,
        ) in zip(
            frame.decisions * same,
            frame.listed(frame.payload),
            frame.listed(frame.key),
            zip(*texts, strict=True) if names else repeat((), frame.count),
            odd.headers,
            zip(*map(frame.listed, frame.origin), strict=True),
            frame.listed(frame.dedupe_id),
            odd.waits,
            frame.listed(frame.event_time),
            frame.sizes,
            frame.listed(frame.ordering_key),
            odd.letters,
            self._schemas.of(batch),
            strict=True,
        ):
            if head is not None and recipient is not None:
                known = origin[0] if "origin_topic" in of_source else None
                came_from = known or str(self.targets.topic)
                head = dict(recipient.own(head, came_from))  # noqa: PLW2901 - of the same row
            if head is not None and decision[2] is None:
                decision = _counted(decision, head)  # noqa: PLW2901 - of the same row
            route, turn = routes.get(decision) or self._decide(decision), 0
            if route.action == RETRY and (read_back or (head and wire.REDRIVE_COUNT in head)):
                route, head, turn = self._redrive(decision, route, head or {}, letter)  # noqa: PLW2901
            route.rows += 1
            size += room + route.size  # noqa: PLW2901 - likewise
            if head:
                properties = {**route.defaults, **head, **route.fixed}
                size += _size_of(head)  # noqa: PLW2901 - likewise
            else:
                properties = route.properties.copy()
            for name, text in zip(names, own, strict=True):
                if text is not None:
                    properties[name] = text
            if origin != _NOWHERE:
                _put_origin(properties, origin, of_source if head else (), head or {})
            properties[wire.DEDUPE_ID] = dedupe_id or identity(payload, key, origin, properties)
            if turn:  # a letter of this redrive is not a duplicate of an earlier letter
                properties[wire.DEDUPE_ID] = redriven_id(properties, "", turn)
            due = self._due(route, wait, properties) if route.delayed or wait != _NO_WAIT else 0
            if size > limit:
                self._too_big(payload, size)
            yield (
                route.topic,
                payload,
                key,
                properties,
                event_time if event_time and event_time > 0 else None,
                due,
                size,
                ordering_key,
                schema,
            )

    def _decide(self, decision: Decision) -> Route:
        """Return a new route: what a consumer would do with a message of that attempt."""
        asked, retryable, attempt, topic = decision
        attempt = 1 if attempt is None else attempt
        if asked not in {None, RETRY, DEAD_LETTER}:
            raise _bad_row("action", asked, f"{RETRY}, {DEAD_LETTER} or null")
        if not 0 <= attempt <= _MAX_ATTEMPT:
            raise _bad_row("attempt", attempt, "0, or the number of the attempt that failed")
        delay = self._options.delays.delay(attempt) if attempt else 0.0  # attempt 0: at once
        retried = asked == RETRY or (
            asked is None
            and retryable is not False
            and not exhausted(attempt, self._options.max_attempts - 1)
        )
        action = RETRY if retried else DEAD_LETTER
        # A row that names its topic is delayed only by a delay that it names too.
        delay_ms = 0 if topic else round(delay * 1000)
        defaults = self._defaults(retried=retried and not topic)
        counts = wire.counts(attempt, delay_ms / 1000, self._level(attempt))
        route = Route(
            topic=self._target(action, topic, attempt),
            action=action,
            delay=delay_ms,
            size=_MESSAGE_ROOM + _TASK_ROOM + _size_of(defaults) + _size_of(counts),
            defaults=defaults,
            fixed=self._task | counts,
        )
        self.routes[decision] = route
        return route

    def _target(self, action: str, topic: str | None, attempt: int) -> str:
        if topic:
            try:
                return str(TopicName.parse(topic))
            except ConfigError:
                raise _bad_row("target_topic", topic, "a topic's name, or null") from None
        target = self.targets.retry if action == RETRY else self.targets.dead_letter
        if target is None:
            option = "retry.topic" if action == RETRY else "dead_letter.topic"
            raise PulsarFailuresError(
                "NO_TARGET",
                f"the action for a row (attempt {attempt}) is {action}, but there is no {option}: "
                "set it, or topic and subscription, or the row's action, retryable or attempt",
            )
        return target

    def _defaults(self, *, retried: bool) -> dict[str, str]:
        targets = self.targets
        names = {
            wire.REAL_TOPIC: targets.topic and logical(targets.topic),
            wire.REAL_SUBSCRIPTION: targets.subscription,
            wire.RETRY_TOPIC: targets.retry if retried else None,
        }
        return {name: text for name, text in names.items() if text is not None}

    def _level(self, attempt: int) -> int | None:
        """Return the delay level, which only TDMQ's dialects write."""
        plan, delays = self.targets.plan, self._options.delays
        if plan is None or not plan.naming.is_tdmq:
            return None
        return delays.clamp(attempt)

    def _due(self, route: Route, wait: Wait, properties: dict[str, str]) -> int:
        """Return when a row is to be delivered, in milliseconds since 1970; 0 for at once."""
        delay, due = route.delay, 0
        if wait != _NO_WAIT:
            delay, due = self._own_wait(wait)
            properties[wire.DELAY_TIME] = str(delay)
            if wire.DELAY in properties:
                properties[wire.DELAY] = "-1"
        if route.action != RETRY:
            return 0  # dead letters are never delayed
        return due or (self.now() + delay if delay else 0)

    def _own_wait(self, wait: Wait) -> tuple[int, int]:
        """Return the row's own delay in milliseconds, and its delivery time; 0 if it names no time.

        A time in the past is returned as well: the row is due at once.
        """
        delay, not_before = wait
        if not_before is not None:
            delay = max(0, not_before - self.now())
        assert delay is not None  # noqa: S101 - one of the two is there
        if not 0 <= delay <= _MAX_DELAY_MS:
            column = "delay_ms" if not_before is None else "not_before"
            raise _bad_row(column, wait[not_before is not None], f"0 to {MAX_DELAY:g} s")
        return delay, 0 if not_before is None else max(1, not_before)

    def _redrive(
        self, decision: Decision, route: Route, headers: dict[str, str], letter: str | None
    ) -> tuple[Route, dict[str, str], int]:
        """Return route and headers of a row that may be brought back, and its redrive's number.

        Each redrive is counted, so that a row does not circulate for ever: after the last one, it
        is a dead letter. Rows of a frame that no longer has the source's columns are recognized by
        the count in their headers, unless they are retried only because of their attempt.
        """
        asked, retryable, attempt, _ = decision
        if not (self._columns.read_back or asked == RETRY or attempt == 0):
            return route, headers, 0
        turn = next_redrive(headers, self._options.max_redrives)
        if turn is not None:
            # Without a known subscription, the row stays a letter of its earlier one.
            stale = (
                _STALE if self.targets.subscription is None else _STALE | {wire.REAL_SUBSCRIPTION}
            )
            fresh = {name: text for name, text in headers.items() if name not in stale}
            fresh[wire.REDRIVE_COUNT] = str(turn)
            if letter is not None:
                fresh[wire.REDRIVEN_FROM] = letter
            return route, fresh, turn
        if self.targets.dead_letter is None:
            raise PulsarFailuresError(
                "TOO_MANY_REDRIVES",
                f"a row was already redriven {wire.redrive_count(headers)} times, and "
                f"max_redrives={self._options.max_redrives}, but there is no dead_letter.topic "
                "for it",
            )
        self.over_redriven += 1
        dead: Decision = (DEAD_LETTER, retryable, attempt, None)
        return self.routes.get(dead) or self._decide(dead), headers, 0

    def _too_big(self, payload: bytes | None, size: int) -> None:
        """Count a row that is sent in chunks, or raise an error."""
        if self._options.oversize == "fail":
            raise PulsarFailuresError(
                "OVERSIZE",
                f"a row takes {size} bytes, {len(payload or b'')} of them payload, but "
                f"max_message_bytes={self._options.max_message_bytes}: oversize=chunk sends "
                "several parts",
            )
        self.oversize += 1


def identity(
    payload: bytes | None, key: str | None, origin: Origin, properties: Mapping[str, str]
) -> str:
    """Return an id for a row that has none: the same for the same row in each run of any job.

    It is made from the row's origin, its payload (unless the message id is known), key, reason and
    stage.
    """
    topic, message_id, source = origin
    content = None if message_id or payload is None else hashlib.sha256(payload).hexdigest()
    failure = map(properties.get, (wire.FAILURE_REASON, wire.FAILURE_STAGE))
    parts = (topic, message_id, source, content, key, *failure)
    text = "\n".join([part or "" for part in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _counted(decision: Decision, headers: Mapping[str, str]) -> Decision:
    """Return the decision with the attempt that the row's own headers count."""
    asked, retryable, _, topic = decision
    return (asked, retryable, wire.reconsume_times(headers) + 1, topic)


def _put_origin(
    properties: dict[str, str],
    origin: Origin,
    of_source: Container[str],
    headers: Mapping[str, str],
) -> None:
    """Add the origin of a row to its properties; the message id has two names there, as in Java."""
    topic, message_id, source = own_origin(origin, headers, of_source)
    if topic is not None:
        properties[wire.REAL_TOPIC] = logical(topic)
    if message_id is not None:
        properties.update(wire.origin_id(message_id))
    if source is not None:
        properties[wire.FAILURE_SOURCE] = source


def _size_of(properties: Mapping[str, str]) -> int:
    """Return the most bytes that properties take on the wire."""
    texts = (*properties, *properties.values())
    return _PROPERTY_ROOM * len(properties) + len("".join(texts).encode())


def _bad_row(column: str, value: object, accepted: str) -> PulsarFailuresError:
    return PulsarFailuresError("BAD_ROW", f"a row has {column}={value!r:.60}: expected {accepted}")
