"""The receiving thread: decides when to receive, how much, and who is woken for it.

While messages flow, a worker on an event loop does the same in its stead (`Receiver.top_up`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pulsar

from pulsar_retry.pull.engine.admission import AdmissionControl
from pulsar_retry.pull.engine.ordered import OrderedLanes
from pulsar_retry.pull.engine.probe import ConnectionProbe
from pulsar_retry.pull.engine.safe_breaker import ThreadSafeBreaker
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.engine.work_queue import Item, Slot, Work, WorkQueue
from pulsar_retry.pull.rules.breaker import BreakerState
from pulsar_retry.pull.rules.flow import FlowControl, FlowGate
from pulsar_retry.pull.rules.lanes import LETTER, Lanes
from pulsar_retry.pull.rules.lease import Lease, LeaseClock
from pulsar_retry.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("pulsar_retry")

#: Seconds between two looks at whether the subscription is to end. Nothing else looks that way: it
#: is the one thing that cannot wake a thread from pulsar-client's receive.
_LOOK = 0.25

#: Seconds between two looks at the connection while something is held that waits: a consumer that
#: the broker has disconnected is back after a tenth of a second.
_GLANCE = 0.025

#: Seconds in which it is back, and was seen to be away.
_BACK = 1.0

#: Milliseconds that a topic that flows may have nothing. To wait for both of two topics costs more
#: than to receive from one, so that begins after these.
_LULL = 5

#: Messages that are received in one go at most.
_MOST = 256

#: Seconds in which workers should be through with what was received in one go. Then more is
#: received next time; after five times as much, less.
_BRISK = 0.001

#: Handlers that take less are as well called by one worker: waking another one costs more. Two that
#: are awake take the interpreter from each other with every call of pulsar-client's.
_QUICK = 0.0001

#: Seconds that waking a worker, and being woken by it, may take on a busy machine.
_WAKING = 0.001

#: Seconds after which another worker is woken if one has not got through.
_STALL = 0.005


class Receiver:
    """Receives for the workers of one subscription.

    Everything but `top_up` runs on its thread; what the two share is done by one at a time.

    Attributes:
        clock: The leases.
    """

    def __init__(
        self,
        work_queue: WorkQueue,
        settler: Settler,
        *,
        flow_control: FlowControl,
        lease: Lease,
        lanes: OrderedLanes | None,
        lane_limits: Lanes,
        safe_breaker: ThreadSafeBreaker | None,
        admission: AdmissionControl | None,
        probe: Callable[[], Future[None]],
        supervise: Callable[[float], None] = lambda _now: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make the receiver.

        *probe* asks the broker for the topics and gives what it will say; *supervise* looks after
        the workers.
        """
        self._supervise = supervise
        self._now = clock.monotonic
        self._work_queue = work_queue
        self._settler = settler
        self._handover = settler.handover
        self._receive = settler.consumer.receive
        self._consumer = settler.consumer
        self._limits = flow_control
        self._gate = FlowGate(flow_control)
        self._lanes = lanes
        self._by_letter = lane_limits.overflow == LETTER
        self._safe_breaker = safe_breaker
        self._admission = admission
        self._probe = ConnectionProbe(probe, self._now)
        self._interval = min(_LOOK, lease.minimum / 4)
        self._idle_interval = max(self._interval, clock.interval(_LOOK))
        self._glance = clock.interval(_GLANCE)
        self._cut: frozenset[bool] = frozenset()
        self._cut_at = -math.inf
        self._moved_at: float | None = None
        self._next_look = 0.0
        self._goes = 1
        self._is_trying = False
        self._is_quick = False
        self._put_up_at = 0.0
        self._put_up = 0
        self._kept: list[Work] = []  # what was in hand, unstarted, when the breaker opened
        self.clock = LeaseClock(lease)
        self._counted = 0
        self._turn = threading.Lock()  # held by the one who receives, or decides about it
        work_queue.top_up = self.top_up
        self._handover.when_moved(self._moved)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Receive until *is_over*.

        Raises:
            pulsar.PulsarException: the subscription cannot go on.
            Exception: a handler has raised what the policy stops for.
        """
        self._goes = len(self._work_queue.slots)
        self._turn.acquire()  # and it is not released at the end: nothing is received after it
        while not is_over():
            if self._settler.fatal is not None:
                raise self._settler.fatal
            wait = self.look()
            self._let_out()
            if not self._may_receive():
                self._wait(wait)
            elif self._is_wanted():
                self._learn()
                is_held = self._is_held()
                if not self._fill(None if is_held else wait) and is_held:
                    self._await_workers(wait)
            else:
                self._await_workers(wait)

    def _wait(self, timeout: float) -> bool:
        """Wait until something has changed, as the queue does; meanwhile a worker may receive."""
        self._turn.release()
        try:
            return self._work_queue.wait(timeout)
        finally:
            self._turn.acquire()

    def top_up(self) -> None:
        """Receive what is there already, on the thread of a worker who sees that more is wanted.

        So messages that flow cost no switch between threads. The receiving thread is woken where
        there are none, or something is wrong: it can wait, and knows what to do about errors.
        """
        if not self._turn.acquire(blocking=False):
            return  # it is receiving
        try:
            if self._may_receive() and self._fill(None):
                return
        except Exception:  # noqa: BLE001 - the receiving thread meets it, too, and judges it
            _log.debug("messages could not be received", exc_info=True)
        finally:
            self._turn.release()
        self._work_queue.notify()

    def _is_wanted(self) -> bool:
        """Tell whether more is to be received: somebody has nothing to do, or soon will."""
        ready = len(self._work_queue.ready) if self._admission is None else self._unsent()
        return ready < self._work_queue.low or bool(self._work_queue.idle and not ready)

    def _is_held(self) -> bool:
        """Tell whether something is ready that the admission control lets out in its own time.

        Then the queue is waited on: it wakes this thread when that comes, which no receive does.
        """
        return (
            self._admission is not None
            and bool(self._work_queue.ready)
            and self._admission.is_backing_off()
        )

    def _let_out(self) -> None:
        """Wake workers for what was put up while nothing was let out, and is ready still."""
        if self._admission is not None and self._work_queue.ready and self._work_queue.idle:
            self._work_queue.wake(min(self._admission.free(), len(self._work_queue.ready)))

    # -- receiving ------------------------------------------------------------------------------

    def _may_receive(self) -> bool:
        """Tell whether flow control, the breaker and the lanes let a message in."""
        if self._lanes is not None and self._lanes.is_blocked():
            return False
        if self._safe_breaker is not None and not self._is_let_in(self._safe_breaker):
            return False
        count, size = self._work_queue.held()
        if self._admission is not None and self._admission.room(self._unsent()) < 1:
            return False
        return self._gate.is_open(count, size)

    def _is_let_in(self, safe_breaker: ThreadSafeBreaker) -> bool:
        safe_breaker.acknowledged(self._work_queue.done())
        match safe_breaker.state():
            case BreakerState.OPEN:
                self._kept.extend(self._work_queue.unstarted())
                return False
            case BreakerState.HALF_OPEN:
                if self._work_queue.running() or self._work_queue.ready:
                    return False
                if self._kept:
                    self._work_queue.put(self._kept.pop(0))
                    return False
                self._is_trying = True
            case _:
                self._is_trying = False
                if self._kept:
                    self._work_queue.ready.extend(self._kept)
                    self._kept.clear()
                    self._work_queue.wake(len(self._work_queue.slots))
        return True

    def _fill(self, wait: float | None) -> bool:
        """Receive until nothing comes, or as much as the workers can take in a moment.

        *wait* is for how many seconds the first message is waited for; None: not at all. Tell
        whether there may be more.
        """
        work_queue, lanes = self._work_queue, self._lanes
        settler, own_letters = self._settler, self._settler.own_letters
        put_up = work_queue.ready.append
        count, size = work_queue.held()
        room = min(self._at_a_time(), self._limits.max_messages - count)
        space = self._limits.max_bytes - size
        received, left, total, has_more = 0, 0, 0, False
        flowing, whole = self._handover.flowing(), self._handover.whole
        try:
            message = self._first(wait, flowing)
            # Anew: where none came at once, the next message may wait in the consumer's own inbox,
            # and those behind it must not be taken before it.
            flowing = self._handover.flowing()
            while True:
                if own_letters.is_empty or not settler.is_superfluous(message):
                    length = message._message.length()  # noqa: SLF001 - data() would copy it
                    if lanes is None:
                        put_up((message, length, None))
                    elif not lanes.admit(message, length):
                        left += 1
                        length = 0
                    received += 1
                    total += length
                    if received >= room or total >= space:
                        has_more = True
                        break
                message = self._receive(0) if flowing is None else whole(flowing(0))
        except pulsar.Timeout:
            pass
        finally:
            kept = received - left
            work_queue.received += kept
            work_queue.received_size += total
        if received:
            self._probe.doubt()
        if kept:
            self._put_up, self._put_up_at = kept, self._now()
            self._next_look = min(self._next_look, self._put_up_at + self._interval)
            work_queue.wake(1 if self._is_quick else kept)
        return has_more

    def _at_a_time(self) -> int:
        """Return how many may be received in one go."""
        if self._is_trying:
            return 1
        # An admission control says itself how much is taken ahead.
        return self._goes if self._admission is None else self._admission.room(self._unsent())

    def _unsent(self) -> int:
        """Return how many messages are ready that nobody has begun to handle yet.

        What is retried in place, now or later, must not keep the messages of other keys out.
        """
        ready = self._work_queue.ready
        if self._lanes is None:
            return len(ready)
        return sum(entry is None or not entry.retries for _, _, entry in ready.copy())

    def _first(self, wait: float | None, flowing: Callable[[int], Any] | None) -> Any:
        """Return the next message; look what is wrong if none comes.

        Raises:
            pulsar.Timeout: none came.
        """
        if wait is None:
            return self._receive(0) if flowing is None else self._handover.whole(flowing(0))
        if flowing is not None:
            with contextlib.suppress(pulsar.Timeout):
                return self._handover.whole(flowing(_LULL))
        with contextlib.suppress(pulsar.Timeout):
            return self._receive(0)
        try:
            return self._receive(max(1, round(wait * 1000)))
        except pulsar.Timeout:
            if self._consumer.is_connected():
                self._probe.end()
            else:
                self._probe.look()
            raise
        except pulsar.Interrupted:
            raise pulsar.Timeout("Pulsar error: Timeout") from None

    def _learn(self) -> None:
        """Adapt to how quickly the workers were through with what was put up last."""
        if not self._put_up:
            return
        took = self._now() - self._put_up_at
        self._is_quick = took < _WAKING + _QUICK * self._put_up
        if took < _BRISK and self._put_up >= self._goes:
            self._goes = min(_MOST, 2 * self._goes)
        elif took > 5 * _BRISK:
            self._goes = max(1, self._goes // 2)
        self._put_up = 0

    def _await_workers(self, wait: float) -> None:
        """Wait until somebody has nothing to do; wake others if that takes long."""
        work_queue = self._work_queue
        is_held = self._admission is not None and self._admission.free() < 1
        if is_held or not (work_queue.ready and work_queue.idle):
            self._wait(wait)
        elif not self._wait(min(wait, _STALL)):
            self._is_quick = False
            work_queue.wake(len(work_queue.ready))

    # -- looking after what is in hand ------------------------------------------------------------

    def look(self) -> float:
        """Look after leases and lanes; return the seconds until that is to be done again."""
        now = self._now()
        if now >= self._next_look:
            in_hand = self._work_queue.held()[0]
            self._next_look = now + (self._interval if in_hand else self._idle_interval)
            self._look_at_leases(now)
        wait = self._next_look - now
        if self._look_at_connection(now):
            wait = min(wait, self._glance)
        if self._safe_breaker is not None:
            wait = min(wait, self._safe_breaker.wait() or wait)
        if self._admission is not None:
            wait = min(wait, self._admission.wait())
        if self._lanes is not None:
            surplus, due = self._lanes.tick()
            for work in surplus:
                self._settler.hand_on(work, letter=self._by_letter)
            wait = min(wait, due)
        return max(0.001, wait)

    def _look_at_leases(self, now: float) -> None:
        """Give a lease to what is handled for a while, and take away what has expired.

        What is quick never gets one, so a lease costs the usual message nothing.
        """
        # First, so that what begins below cannot end before the worker has seen that it is watched.
        for key in self.clock.expired(now):
            slot, item = cast("tuple[Slot, Item]", key)
            self._settler.expire(slot, item)
        for slot in self._work_queue.slots:
            watched = slot.watched
            if watched is not None and slot.work is not watched:
                self.clock.end((slot, watched), now)
                slot.watched = None
            work = slot.work
            if work is not slot.seen:
                slot.seen, slot.seen_at = work, now
            elif work is not None and watched is not work:
                slot.watched = work
                self.clock.begin((slot, work), slot.seen_at)
        done = self._work_queue.done()
        self.clock.times.add(0.0, done - self._counted)
        self._counted = done
        self._supervise(now)

    # -- seeks and new connections ----------------------------------------------------------------

    def _moved(self) -> None:
        """Take note, on any thread, that this process has moved the subscription."""
        self._moved_at = self._now()
        self._work_queue.notify()

    def _look_at_connection(self, now: float) -> bool:
        """Let go of what nobody has begun to handle, if the subscription may have been moved.

        The broker disconnects consumers for that, but does not say why. Whatever the reason, it
        delivers what is unacknowledged anew. Tell whether it is to be looked soon again.
        """
        before, self._cut = self._cut, self._handover.cut()
        if not self._cut <= before:
            self._cut_at = now
            self._let_go()
        if (moved_at := self._moved_at) is not None:
            is_cut = self._cut_at >= moved_at - _BACK
            if not is_cut and now >= moved_at + _BACK:  # it was too short to be seen
                self._let_go()
                is_cut = True
            if is_cut:
                self._settler.own_letters.clear()
                self._moved_at = None
        lanes = self._lanes
        holds = self._kept or self._work_queue.ready or (lanes is not None and not lanes.is_empty)
        return bool(holds) or self._moved_at is not None

    def _let_go(self) -> None:
        """Let go of what nobody has begun to handle. The broker delivers it again, or not."""
        if self._lanes is not None:
            self._lanes.begin_anew()
        for work in self.take_down():
            self._settler.let_go(work, self._cut)

    def take_down(self) -> list[Work]:
        """Return what is in hand that nobody has begun to handle, and forget it."""
        kept, self._kept = self._kept, []
        works = [*kept, *self._work_queue.unstarted()]
        return works if self._lanes is None else [*works, *self._lanes.clear(works)]
