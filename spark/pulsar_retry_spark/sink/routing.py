"""Where each row goes, when, and with which properties: a batch at a time. Pure.

The rules are those of the consumer's letters: the same decision about retrying, and the same
property names. A row's own columns win over all else, then come the properties that each message
has (`Route.fixed`), then the row's headers, then `Route.defaults`.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import MAX_DELAY
from pulsar_retry.policy.outcomes import exhausted
from pulsar_retry.wire import properties as wire
from pulsar_retry.wire.dead_letter import dedupe_id as redriven_id
from pulsar_retry.wire.dead_letter import next_redrive
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.frames.batch import (
    Decision,
    Frame,
    Odd,
    Origin,
    Wait,
    read_frame,
    read_odd,
)
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.options import (
    DEAD_LETTER,
    LETTER_OPTION,
    RETRY,
    SinkOptions,
    SinkTargets,
    stored_topic,
)
from pulsar_retry_spark.schemas import TopicSchema
from pulsar_retry_spark.sink.messages import Group, Messages
from pulsar_retry_spark.sink.values import Versions, row_schemas

#: How many reasons are counted separately; the others are counted together.
_MAX_REASONS = 1000
OTHER_REASONS = "(other)"

#: A batch is parted if its rows have more different names of headers than this, and most rows have
#: only a small part of them: each name is a column, and costs time for all rows.
_MANY_NAMES, _SMALL_PART = 32, 8

#: The most bytes that a message and each of its properties take on the wire beside their contents.
_MESSAGE_ROOM, _PROPERTY_ROOM = 64, 16

#: Bytes reserved for the properties that name the task.
_TASK_ROOM = 1024

#: Headers that no longer apply when a dead letter is brought back: the earlier retry topic, and the
#: earlier redrive.
_STALE = frozenset({wire.RETRY_TOPIC, wire.REDRIVE_ID})

_MAX_DELAY_MS = round(MAX_DELAY * 1000)
_MAX_ATTEMPT = 2**31 - 1  # Java reads an int

_NO_WAIT: Wait = (None, None)

#: Properties that a row may add to those of its route, beside texts and headers.
_OWN_PROPERTIES = (
    wire.REAL_TOPIC,
    wire.ORIGIN_MESSAGE_ID,
    wire.ORIGIN_MESSAGE_ID_OLD,
    wire.FAILURE_SOURCE,
    wire.DEDUPE_ID,
)


@attrs.define(eq=False)
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
    """

    topic: str
    action: str
    delay: int
    size: int
    defaults: dict[str, str]
    fixed: dict[str, str]
    rows: int = 0


@attrs.define
class Taken:
    """The routes of a batch's rows, and what rows have that are not usual; else that is empty.

    Attributes:
        routes: The routes.
        codes: The number of each row's route; empty if all take the first one.
        heads: The headers of each row.
        turns: The number of each row's redrive; 0 if it is none.
        delays: The delay in milliseconds that each row names itself.
        dues: When each row is due, in milliseconds since 1970; 0 for at once.
        over: How many rows were brought back too often.
    """

    routes: list[Route] = attrs.Factory(list)
    codes: list[int] = attrs.Factory(list)
    heads: list[dict[str, str]] = attrs.Factory(list)
    turns: list[int] = attrs.Factory(list)
    delays: list[str | None] = attrs.Factory(list)
    dues: list[int] = attrs.Factory(list)
    over: int = 0
    _numbers: dict[Route, int] = attrs.Factory(dict)

    def take(self, route: Route) -> int:
        """Return the number of *route*."""
        number = self._numbers.get(route)
        if number is None:
            number = self._numbers[route] = len(self.routes)
            self.routes.append(route)
        return number

    def by_route(self, values: Sequence[Any]) -> Any:
        """Return the value that all routes have, or a column with those of the rows' routes."""
        if len(set(values)) == 1:
            return values[0]
        return pa.array(values, pa.large_string()).take(pa.array(self.codes, pa.int32()))


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
        self._options = options
        self._columns = columns
        self.targets = targets
        self._recipient: Recipient | None = None
        if targets.topic is not None and targets.subscription is not None:
            topics = (targets.topic,)
            self._recipient = Recipient.of(topics, targets.subscription, targets.retry)
        self._task = dict(task)
        self._versions: Versions = functools.cache(versions)
        self._clock = clock
        self.routes: dict[Decision, Route] = {}
        self.reasons: Counter[str] = Counter()
        self.oversize = 0
        self.over_redriven = 0
        self.payload_bytes = 0

    def messages(self, batch: pa.RecordBatch) -> Iterator[Messages]:
        """Yield the messages for the rows of *batch*, which are counted; usually all at once.

        Raises:
            PulsarFailuresError: a row's action, attempt or delay is invalid, it has no target
                topic, it is too big, or it was brought back too often and there is no dead-letter
                topic. The error names the row.
        """
        frame, now = read_frame(batch, self._columns), int(self._clock() * 1000)
        odd = read_odd(batch, self._columns)
        taken = self._usual(frame) if odd is None else self._odd(frame, odd, now)
        names = {name for head in taken.heads for name in head}
        texts = sum(map(len, taken.heads))
        if len(names) > _MANY_NAMES and len(names) * frame.count > _SMALL_PART * texts:
            half = frame.count // 2
            yield from self.messages(batch.slice(0, half))
            yield from self.messages(batch.slice(half))
            return
        made = self._made(frame, taken, names, now)
        schemas = row_schemas(batch, self._columns, self._options.schema, self._versions)
        made.groups = self._grouped(frame, taken, made, schemas)
        self._count(frame, taken)
        yield made

    def _usual(self, frame: Frame) -> Taken:
        """Return the routes of rows of which nothing but the decision differs."""
        taken = Taken()
        codes = [taken.take(self._route(d, frame, row)) for row, d in enumerate(frame.decisions)]
        taken.codes = codes if len(taken.routes) > 1 else []
        return taken

    def _odd(self, frame: Frame, odd: Odd, now: int) -> Taken:
        """Return the routes of rows that have headers or waits, or were read back."""
        taken = Taken()
        known = frame.origin[0] if "origin_topic" in self._columns.of_source else None
        same = frame.count if len(frame.decisions) == 1 else 1
        facts = (frame.decisions * same, odd.headers, frame.listed(known), odd.waits)
        for row, (*of_letter, wait) in enumerate(zip(*facts, strict=True)):
            try:
                route, head, turn, is_over = self._of_letter(*of_letter)
                delay, due = self._own_wait(wait, now) if wait != _NO_WAIT else (None, 0)
            except PulsarFailuresError as error:
                raise _of_row(error, frame, row) from None
            if route.action != RETRY:
                due = 0  # dead letters are never delayed
            elif delay is None:
                due = now + route.delay if route.delay else 0
            taken.codes.append(taken.take(route))
            taken.heads.append(head)
            taken.turns.append(turn)
            taken.delays.append(None if delay is None else str(delay))
            taken.dues.append(due)
            taken.over += is_over
        return taken

    def _of_letter(
        self, decision: Decision, headers: dict[str, str] | None, topic: str | None
    ) -> tuple[Route, dict[str, str], int, bool]:
        """Return the route of a row that may have been a letter before.

        Args:
            decision: What its columns say.
            headers: Its own properties.
            topic: The topic that its source read it from.

        Returns:
            Its route, the headers that still apply, the number of its redrive (0 if it is none),
            and whether it was brought back too often.
        """
        head = headers or {}
        if head and self._recipient is not None:
            head = dict(self._recipient.own(head, topic or str(self.targets.topic)))
        if head and decision[2] is None:
            asked, retryable, _, target = decision
            attempt = min(_MAX_ATTEMPT, wire.reconsume_times(head) + 1)
            decision = (asked, retryable, attempt, target)
        route = self.routes.get(decision) or self._decide(decision)
        if route.action != RETRY or not (self._columns.read_back or wire.REDRIVE_COUNT in head):
            return route, head, 0, False
        taken, head, turn = self._redrive(decision, route, head)
        return taken, head, turn, taken is not route

    def _made(self, frame: Frame, taken: Taken, names: Collection[str], now: int) -> Messages:
        """Return the messages, not grouped yet."""
        own = self._own_properties(frame, taken)
        fixed = {name for each in taken.routes for name in each.fixed}
        defaults = {name for each in taken.routes for name in each.defaults}
        properties: dict[str, str | pa.Array] = {}
        for name in {*fixed, *defaults, *own, *names}:
            layers = [own.get(name)]
            if name in fixed:
                layers.append(taken.by_route([each.fixed.get(name) for each in taken.routes]))
            else:
                if name in names:
                    texts = [head.get(name) for head in taken.heads]
                    layers.append(pa.array(texts, pa.large_string()))
                layers.append(taken.by_route([each.defaults.get(name) for each in taken.routes]))
            if (value := _first_of(layers)) is not None:
                properties[name] = value
        room = _size_of(dict.fromkeys((*frame.properties, *_OWN_PROPERTIES), ""))
        more = [room + route.size for route in taken.routes]
        if taken.codes:
            sizes = [size + more[code] for size, code in zip(frame.sizes, taken.codes, strict=True)]
        else:
            sizes = [size + more[0] for size in frame.sizes]
        if taken.heads:
            sizes = [s + _size_of(h) if h else s for s, h in zip(sizes, taken.heads, strict=True)]
        return Messages(
            groups=(),
            parts=(frame.payload, frame.key, frame.ordering_key, frame.event_time),
            properties=properties,
            dues=self._dues(frame, taken, now),
            sizes=sizes,
        )

    def _own_properties(self, frame: Frame, taken: Taken) -> dict[str, pa.Array]:
        """Return the properties that the rows' columns give: they win over all others."""
        own = dict(frame.properties)
        topic, message_id, source = frame.origin
        # The headers of a letter know the message that it was made from, which its source does not.
        of_source = self._columns.of_source if taken.heads else ()
        if topic is not None:
            if "origin_topic" in of_source:
                topic = _without(topic, [wire.REAL_TOPIC in head for head in taken.heads])
            own[wire.REAL_TOPIC] = _mapped(topic, logical)
        if message_id is not None:
            if "origin_message_id" in of_source:
                said = [wire.origin_message_id(head) is not None for head in taken.heads]
                message_id = _without(message_id, said)
            own |= dict.fromkeys(wire.origin_id(""), message_id)
        if source is not None:
            own[wire.FAILURE_SOURCE] = source
        if any(each is not None for each in taken.delays):
            own[wire.DELAY_TIME] = pa.array(taken.delays, pa.large_string())
            facts = zip(taken.delays, taken.codes, taken.heads, strict=True)
            levels = [
                "-1"
                if delay is not None and wire.DELAY in taken.routes[code].fixed | head
                else None
                for delay, code, head in facts
            ]
            if any(levels):
                own[wire.DELAY] = pa.array(levels, pa.large_string())
        own[wire.DEDUPE_ID] = self._dedupe_ids(frame, taken)
        return own

    def _dedupe_ids(self, frame: Frame, taken: Taken) -> pa.Array:
        """Return the ids that show duplicates; they are computed where rows have none."""
        ids = frame.dedupe_id
        if ids is None or ids.null_count or pc.any(pc.equal(ids, "")).as_py():
            failure = (wire.FAILURE_REASON, wire.FAILURE_STAGE)
            columns = (
                ids,
                frame.payload,
                frame.key,
                *frame.origin,
                *map(frame.properties.get, failure),
            )
            rows = zip(*map(frame.listed, columns), strict=True)
            texts = []
            for row, (known, payload, key, topic, message_id, source, *said) in enumerate(rows):
                head = taken.heads[row] if taken.heads else {}
                causes = [
                    head.get(name) if text is None else text
                    for name, text in zip(failure, said, strict=True)
                ]
                texts.append(known or identity(payload, key, (topic, message_id, source), causes))
            ids = pa.array(texts, pa.large_string())
        if any(taken.turns):  # a letter of this redrive is not a duplicate of an earlier letter
            turned = zip(ids.to_pylist(), taken.turns, strict=True)
            texts = [redriven_id({wire.DEDUPE_ID: t}, "", n) if n else t for t, n in turned]
            ids = pa.array(texts, pa.large_string())
        return ids

    def _dues(self, frame: Frame, taken: Taken, now: int) -> Sequence[int] | None:
        if taken.dues:
            return taken.dues if any(taken.dues) else None
        of = [
            now + each.delay if each.action == RETRY and each.delay else 0 for each in taken.routes
        ]
        if not any(of):
            return None
        return [of[code] for code in taken.codes] if taken.codes else of * frame.count

    def _grouped(
        self,
        frame: Frame,
        taken: Taken,
        made: Messages,
        schemas: Sequence[TopicSchema | None] | None,
    ) -> list[Group]:
        """Return the rows by the producers that send them."""
        limit, dues = self._options.max_message_bytes, made.dues
        big = max(made.sizes) > limit
        if not taken.codes and not big and schemas is None:
            return [Group(taken.routes[0].topic, dues is not None, None, range(frame.count))]
        rows: dict[tuple[str, bool, TopicSchema | None], list[int]] = defaultdict(list)
        codes = taken.codes or [0] * frame.count
        for row, code in enumerate(codes):
            chunked = big and made.sizes[row] > limit
            late = dues is not None and dues[row] != 0
            if chunked:
                if self._options.oversize == "fail":
                    raise _of_row(self._too_big(frame, made, row), frame, row)
                self.oversize += 1
            schema = None if schemas is None else schemas[row]
            rows[taken.routes[code].topic, chunked or late, schema].append(row)
        return [Group(*key, each) for key, each in rows.items()]

    def _too_big(self, frame: Frame, made: Messages, row: int) -> PulsarFailuresError:
        return PulsarFailuresError(
            "OVERSIZE",
            f"a row takes {made.sizes[row]} bytes, {frame.payload_sizes[row]} of them payload, but "
            f"max_message_bytes={self._options.max_message_bytes}: oversize=chunk sends several "
            "parts",
        )

    def _count(self, frame: Frame, taken: Taken) -> None:
        """Count the rows for each route and reason, and the bytes of all payloads.

        The number of reasons has a bound, in case each row has a different one.
        """
        self.over_redriven += taken.over
        self.payload_bytes += sum(frame.payload_sizes)
        if not taken.codes:
            taken.routes[0].rows += frame.count
        for code, rows in Counter(taken.codes).items():
            taken.routes[code].rows += rows
        for given, rows in frame.reasons().items():
            reason = given or ""
            known = reason in self.reasons or len(self.reasons) < _MAX_REASONS
            self.reasons[reason if known else OTHER_REASONS] += rows

    def _route(self, decision: Decision, frame: Frame, row: int) -> Route:
        """Return the route for the decision of a row.

        Raises:
            PulsarFailuresError: the row's action or attempt is invalid, or it has no target topic.
        """
        try:
            return self.routes.get(decision) or self._decide(decision)
        except PulsarFailuresError as error:
            raise _of_row(error, frame, row) from None

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
                return stored_topic(topic, "target_topic")
            except ConfigError:
                accepted = "a persistent topic's name, or null"
                raise _bad_row("target_topic", topic, accepted) from None
        target = self.targets.retry if action == RETRY else self.targets.dead_letter
        if target is None:
            raise PulsarFailuresError(
                "NO_TARGET",
                f"the action for a row (attempt {attempt}) is {action}, but there is no "
                f"{LETTER_OPTION[action]}: "
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

    def _own_wait(self, wait: Wait, now: int) -> tuple[int, int]:
        """Return a row's own delay in milliseconds, and when it is due, also if that is over."""
        delay, not_before = wait
        if not_before is not None:
            delay = max(0, not_before - now)
        assert delay is not None  # one of the two is there
        if not 0 <= delay <= _MAX_DELAY_MS:
            if not_before is None:
                raise _bad_row("delay_ms", delay, f"0 to {_MAX_DELAY_MS}, in milliseconds")
            raise _bad_row("not_before", _shown(not_before), f"at most {MAX_DELAY:g} s from now")
        if not_before is not None:
            return delay, max(1, not_before)
        return delay, now + delay if delay else 0

    def _redrive(
        self, decision: Decision, route: Route, headers: dict[str, str]
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
            return route, fresh, turn
        if self.targets.dead_letter is None:
            raise PulsarFailuresError(
                "TOO_MANY_REDRIVES",
                f"a row was already redriven {wire.redrive_count(headers)} times, and "
                f"max_redrives={self._options.max_redrives}, but there is no "
                f"{LETTER_OPTION[DEAD_LETTER]} for it",
            )
        dead: Decision = (DEAD_LETTER, retryable, attempt, None)
        return self.routes.get(dead) or self._decide(dead), headers, 0


def identity(
    payload: bytes | None, key: str | None, origin: Origin, failure: Iterable[str | None]
) -> str:
    """Return an id for a row that has none: the same for the same row in each run of any job.

    It is made from the row's origin, its payload (unless the message id is known), key, reason and
    stage, which are *failure*. `frames.rows` makes the same in SQL.
    """
    topic, message_id, source = origin
    content = None if message_id or payload is None else hashlib.sha256(payload).hexdigest()
    parts = (topic, message_id, source, content, key, *failure)
    text = "\n".join([part or "" for part in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _first_of(layers: Iterable[str | pa.Array | None]) -> str | pa.Array | None:
    """Return for each row the first text of *layers*: texts of all rows, or columns."""
    there = [each for each in layers if each is not None]
    if len(there) < 2 or isinstance(there[0], str):  # noqa: PLR2004 - nothing to choose from
        return there[0] if there else None
    return pc.coalesce(
        *[each if isinstance(each, str) else each.cast(pa.large_string()) for each in there]
    )


def _mapped(texts: pa.Array, change: Callable[[str | None], str | None]) -> pa.Array:
    """Change each distinct text."""
    coded = texts.dictionary_encode()
    values = [change(each) for each in coded.dictionary.to_pylist()]
    return pa.array(values, pa.large_string()).take(coded.indices)


def _without(texts: pa.Array, left_out: Sequence[bool]) -> pa.Array:
    """Return *texts* with nulls where they are left out."""
    return pc.if_else(pa.array(left_out), pa.scalar(None, texts.type), texts)


def _size_of(properties: Mapping[str, str]) -> int:
    """Return the most bytes that properties take on the wire."""
    texts = (*properties, *properties.values())
    return _PROPERTY_ROOM * len(properties) + len("".join(texts).encode())


def _shown(milliseconds: int) -> str:
    # Arrow writes years after 9999, too, which Python's times do not have.
    return f"{pa.scalar(milliseconds, pa.timestamp('ms')).cast(pa.string())}Z"


def _bad_row(column: str, value: object, accepted: str) -> PulsarFailuresError:
    return PulsarFailuresError("BAD_ROW", f"a row has {column}={value!r:.60}: expected {accepted}")


def _of_row(error: PulsarFailuresError, frame: Frame, row: int) -> PulsarFailuresError:
    """Return *error* with what tells the row: its key, where it came from, and its id."""
    topic, message_id, source = frame.origin
    facts = {
        "key": frame.key,
        "origin_topic": topic,
        "origin_message_id": message_id,
        "source": source,
        "dedupe_id": frame.dedupe_id,
    }
    said = [
        f"{name}={text!r:.200}"
        for name, column in facts.items()
        if column is not None and (text := column[row].as_py())
    ]
    if not said:
        return error
    return PulsarFailuresError(error.slug, f"{error.text}; the row has {', '.join(said)}")
