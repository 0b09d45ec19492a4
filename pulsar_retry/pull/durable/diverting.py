"""Diverts the messages of held keys from the topic to the stream, in order.

The steps of a message are those of `tests/model/Lanes.tla`, and have the same names.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Any, Protocol

import attrs

from pulsar_retry.consumer.access import SubscriberAccess
from pulsar_retry.errors import ConsumerClosedError, shown
from pulsar_retry.letters.facts import facts_of
from pulsar_retry.policy.actions import RetryLater
from pulsar_retry.policy.outcomes import Failure
from pulsar_retry.pull.durable.log import ClaimLog
from pulsar_retry.pull.engine.ordered import OrderedLanes
from pulsar_retry.pull.engine.work_queue import LaneEntry, Work, WorkQueue
from pulsar_retry.pull.rules.crashes import one_more_crash
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.worker import Worker
from pulsar_retry.wire.lanes import LANE_ENTRY, MARK, Entry, Head, LaneClaim

_log = logging.getLogger("pulsar_retry")

#: Seconds after which a message is diverted again that could not be published.
_AGAIN = 1.0

#: Seconds after which a key counts as held for nothing, if nothing is known to wait: from here to
#: twice as long, so that not all processes look at the same time. And seconds between two looks.
_IDLE_AFTER, _LOOK_EVERY = 300.0, 30.0

#: Why a message of a held key has failed (`SubscriberAccess.divert`); None: it has not.
_Failed = tuple[RetryLater, Failure, int] | None


class Settles(Protocol):
    """The part of a settler that is used here."""

    def diverted(self, work: Work, error: BaseException | None, *, failed: bool) -> None:
        """Record that a message is in the stream, unless there is an *error*."""

    def let_go(self, work: Work, cut: frozenset[bool]) -> None:
        """Forget a message that the broker delivers again."""

    def come_back(self, work: Work, trouble: BaseException) -> None:
        """Have a message redelivered."""

    def cannot_divert(self, work: Work) -> None:
        """Dead-letter a message whose properties a letter could not have."""


class _Phase(Enum):
    """What happens to the message of a key that is being diverted."""

    IDLE = "there is none"
    CLAIMED = "the claim is written, and must be read"
    SENT = "it is being published"
    CONFIRM = "its receipt is there, and the claim must still be the newest"
    CLAIM_AGAIN = "another claim is written, and must be read"


@attrs.define(eq=False)
class _Hold:
    """What this process does for a key that is held.

    Attributes:
        claim: The newest claim of this process.
        tail: The number of the last entry that it has published under this claim; 0 without one.
        under: The place of the claim that it had when it published this entry.
        phase: See `_Phase`.
        work: The message that is being diverted.
        failed: Why, if this message itself has failed (`SubscriberAccess.divert`).
        source: What acknowledges the message.
        ticket: What must be read before the next step.
        is_marking: Whether no message is diverted, but a mark, to release an idle key.
        is_releasing: Whether the claim is being released.
        stalled: The next message, if it waits for the mark or the release, and why it has failed.
    """

    claim: str = ""
    tail: int = 0
    under: int = 0
    phase: _Phase = _Phase.IDLE
    work: Work | None = None
    failed: _Failed = None
    source: _Confirmed | None = None
    ticket: int = 0
    is_marking: bool = False
    is_releasing: bool = False
    stalled: tuple[Work, _Failed] | None = None


class _Confirmed:
    """Stands for a raw consumer, and acknowledges a message when that is confirmed."""

    def __init__(self, source: Any, asked: Callable[[], None]) -> None:
        self._source = source
        self._asked = asked
        self._raw: Any = None
        self._callbacks: list[Callable[[Any], object]] = []

    def acknowledge_async(self, raw: Any, callback: Callable[[Any], object]) -> None:
        """Acknowledge *raw* later. It can be called twice for one message."""
        self._raw = raw
        self._callbacks.append(callback)
        if len(self._callbacks) == 1:
            self._asked()

    def acknowledge(self) -> None:
        """Acknowledge now."""

        def acknowledged(result: Any) -> None:
            for callback in self._callbacks:
                callback(result)

        self._source.acknowledge_async(self._raw, acknowledged)

    def is_connected(self) -> bool:
        """Tell whether the consumer is connected."""
        return bool(self._source.is_connected())


class Diverter:
    """Diverts the messages of one subscription in this process. Thread-safe."""

    def __init__(
        self,
        log: ClaimLog,
        access: SubscriberAccess,
        work_queue: WorkQueue,
        lanes: OrderedLanes,
        settler: Settles,
        *,
        stream: str,
        mark: Callable[[str, str], object],
        clock: Clock,
    ) -> None:
        """Make it.

        Args:
            log: The log.
            access: Publishes messages.
            work_queue: Where messages begin that are not diverted.
            lanes: The lanes of the topic.
            settler: Is told what becomes of messages.
            stream: The full name of the stream.
            mark: Publishes a mark to the stream, from the key and what the entry says. Blocks.
            clock: The clock.
        """
        self._log = log
        self._access = access
        self._work_queue = work_queue
        self._lanes = lanes
        self._settler = settler
        self._stream = stream
        self._mark = mark
        self._time = clock.time
        self._idle_after = _IDLE_AFTER * random.uniform(1, 2)  # noqa: S311 - no secret
        self._next_look = clock.time() + _LOOK_EVERY
        self._writer = uuid.uuid4().hex[:12]
        self._number = 0
        self._holds: dict[str, _Hold] = {}
        self._worker = Worker("pulsar-retry-diverting", clock)
        log.changed.append(self._changed)
        log.looked.append(self._looked)

    def takes(self, work: Work) -> bool:
        """Divert a message if its key is held, or if it has failed; tell whether it does."""
        assert work.entry is not None  # noqa: S101 - it has a key
        key, failed = work.entry.key, work.entry.failed
        with self._log.lock:
            hold = self._holds.get(key)
            if failed is None and hold is None and not self._log.view.is_held(key):
                return False
            self._begin(key, work, failed)
            return True

    def fail(self, work: Work, action: RetryLater, failure: Failure, failures: int) -> None:
        """Divert a message that has failed, so that its successors wait for it."""
        assert work.entry is not None  # noqa: S101 - it has a key
        with self._log.lock:
            self._begin(work.entry.key, work, (action, failure, failures))

    def take_down(self) -> list[Work]:
        """Remove and return the messages for which nothing is under way."""
        with self._log.lock:
            works = [hold.stalled[0] for hold in self._holds.values() if hold.stalled is not None]
            for hold in self._holds.values():
                hold.stalled = None
        return works

    def close(self) -> None:
        """Divert nothing more."""
        self._worker.close()

    def gauges(self) -> dict[str, float]:
        """Return how many keys of the subscription are held."""
        return {"lanes_held": float(len(self._log.view))}

    # -- steps; the lock is held ------------------------------------------------------------------

    def _begin(self, key: str, work: Work, failed: _Failed) -> None:
        hold = self._holds.setdefault(key, _Hold())
        if hold.is_releasing or hold.is_marking:
            hold.stalled = work, failed
            return
        hold.work, hold.failed = work, failed
        if hold.claim and self._log.view.newest(key) == hold.claim:
            self._publish_soon(key, hold)
        else:
            hold.tail = 0
            self._claim(key, hold, _Phase.CLAIMED)

    def _claim(self, key: str, hold: _Hold, phase: _Phase) -> None:
        hold.claim, hold.phase, hold.ticket = f"{self._writer}-{uuid.uuid4().hex[:8]}", phase, 0
        claim = LaneClaim(key, hold.claim, self._writer, self._time())
        self._log.write(claim, stored=partial(self._stored, hold, hold.claim))

    def _stored(self, hold: _Hold, claim: str) -> None:
        with self._log.lock:
            if hold.claim == claim:
                hold.ticket = self._log.ticket()

    def _step(self, key: str, hold: _Hold) -> None:
        """Do what can be done now."""
        view, is_read = self._log.view, 0 < hold.ticket <= self._log.passed
        match hold.phase:
            case _Phase.CLAIMED if view.is_live(key, hold.claim):
                self._publish_soon(key, hold)
            case _Phase.CLAIMED if is_read:  # somebody has released it already
                self._claim(key, hold, _Phase.CLAIMED)
            case _Phase.CONFIRM if is_read and view.newest(key) != hold.claim:
                self._claim(key, hold, _Phase.CLAIM_AGAIN)
            case _Phase.CONFIRM if is_read:
                self._acknowledge(hold)
            case _Phase.CLAIM_AGAIN if is_read or view.is_live(key, hold.claim):
                self._acknowledge(hold)
            case _Phase.IDLE:
                self._release(key, hold)

    def _publish_soon(self, key: str, hold: _Hold) -> None:
        hold.phase = _Phase.SENT
        self._worker.submit(partial(self._publish, key, hold))  # else the consumer is closed

    def _acknowledge(self, hold: _Hold) -> None:
        source, hold.source, hold.phase = hold.source, None, _Phase.SENT
        if source is not None:
            source.acknowledge()

    def _release(self, key: str, hold: _Hold) -> None:
        """Release the key if everything is ended that this process has published."""
        view = self._log.view
        if hold.is_releasing or not hold.tail or view.newest(key) != hold.claim:
            return
        head = view.heads.get(key)
        if head is None or head.ended.get(self._writer, 0) < hold.tail:
            return
        hold.is_releasing = True
        self._log.write(Head(key), removed=True)
        for claim in view.to_release(key, hold.claim, hold.under):
            self._log.write(claim, removed=True)

    # -- events -----------------------------------------------------------------------------------

    def _changed(self, key: str) -> None:
        """Look at a key that a new record of the log is about."""
        begins: Work | None = None
        with self._log.lock:
            hold = self._holds.get(key)
            if hold is None:
                return
            is_over = hold.phase is _Phase.IDLE and not self._log.view.is_live(key, hold.claim)
            if not is_over:
                self._step(key, hold)
                return
            del self._holds[key]
            if hold.stalled is not None:
                work, failed = hold.stalled
                if failed is not None or self._log.view.is_held(key):
                    self._begin(key, work, failed)
                else:
                    begins = work
        if begins is not None:
            self._work_queue.begin(begins)
            self._work_queue.wake(1)

    def _looked(self) -> None:
        """Go on with what has waited for the last look at the end of the log."""
        with self._log.lock:
            passed = self._log.passed
            for key, hold in list(self._holds.items()):
                if hold.phase is not _Phase.IDLE and 0 < hold.ticket <= passed:
                    self._step(key, hold)
            if (now := self._time()) >= self._next_look:
                self._next_look = now + _LOOK_EVERY
                for key in self._log.view.idle(now - self._idle_after):
                    if key not in self._holds and not key.startswith(("b'", 'b"')):  # a binary key
                        hold = self._holds[key] = _Hold(is_marking=True)
                        self._claim(key, hold, _Phase.CLAIMED)

    def _publish(self, key: str, hold: _Hold) -> None:
        """Publish a message, on a thread that may block."""
        if hold.is_marking:
            self._publish_mark(key, hold)
            return
        with self._log.lock:
            work = hold.work
            if work is None or work.entry is None:
                return
            is_gone = self._lanes.is_of_before(work.entry)
            if not is_gone:
                self._next_entry(key, hold)
        if is_gone:  # its connection is gone: the broker delivers it again
            self._idle(key, hold)
            self._settler.let_go(work, frozenset())
            self._lanes.done(key)
            return
        if facts_of(work.message).is_text:
            self._divert(key, hold, work, work.entry)
        else:
            self._idle(key, hold)
            self._settler.cannot_divert(work)

    def _divert(self, key: str, hold: _Hold, work: Work, place: LaneEntry) -> None:
        """Publish a message to the stream, as the next entry; *place* is its place in the lane."""
        facts = facts_of(work.message)
        entry = Entry(self._writer, self._number, facts.message_id)
        custom = {LANE_ENTRY: str(entry)}
        if hold.failed is not None:
            custom.update(one_more_crash(facts.properties, hold.failed[1].cause))

        def confirm(source: Any) -> _Confirmed:
            hold.source = _Confirmed(source, partial(self._has_receipt, hold))
            return hold.source

        try:
            future = self._access.divert(
                work.message, self._stream, custom, hold.failed, confirm=confirm
            )
        except ConsumerClosedError as error:
            self._idle(key, hold)
            self._settler.come_back(work, error)
        except Exception as error:  # noqa: BLE001 - its successors must wait
            text = "a message of a held key cannot be published, and its successors wait: %s"
            _log.error(text, shown(error), extra=self._access.watch.facts(work.message))
            place.failed = hold.failed
            self._idle(key, hold)
            self._lanes.park(work, _AGAIN)
        else:
            future.add_done_callback(partial(self._diverted, key, hold, work))

    def _next_entry(self, key: str, hold: _Hold) -> None:
        self._number += 1
        hold.tail, hold.ticket = self._number, 0
        hold.under = self._log.view.place(key, hold.claim)

    def _publish_mark(self, key: str, hold: _Hold) -> None:
        """Publish a mark: when it is reached, the key is released."""
        with self._log.lock:
            self._next_entry(key, hold)
        try:
            self._mark(key, str(Entry(self._writer, hold.tail, MARK)))
        except Exception as error:  # noqa: BLE001 - the key remains held, and is looked at again
            _log.warning("a key that is held for nothing cannot be released: %s", shown(error))
            hold.tail = 0
        with self._log.lock:
            hold.is_marking, stalled, hold.stalled = False, hold.stalled, None
            if stalled is not None:
                self._begin(key, *stalled)
            elif hold.tail:
                self._idle(key, hold)
            else:
                del self._holds[key]

    def _has_receipt(self, hold: _Hold) -> None:
        with self._log.lock:
            hold.phase, hold.ticket = _Phase.CONFIRM, self._log.ticket()

    def _idle(self, key: str, hold: _Hold) -> None:
        with self._log.lock:
            hold.work, hold.failed, hold.source, hold.phase = None, None, None, _Phase.IDLE
            self._step(key, hold)

    def _diverted(self, key: str, hold: _Hold, work: Work, future: Future[None]) -> None:
        """Go on with the next message of the key."""
        has_failed = hold.failed is not None
        self._idle(key, hold)
        self._settler.diverted(work, future.exception(), failed=has_failed)
