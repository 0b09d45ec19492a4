"""The receiving thread: it decides when to receive, how much, and which workers to wake."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pulsar

from pulsar_retry.pull.engine.breaker import CANDIDATES, BreakerGate
from pulsar_retry.pull.engine.connection import (
    ENOUGH_ERRORS,
    FATAL,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    TRANSIENT,
    ConnectionProbe,
    Renewal,
)
from pulsar_retry.pull.engine.hand import AdmissionControl, Hand
from pulsar_retry.pull.engine.lanes import OrderedLanes
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.settings import PAUSE, RESUME, FlowControl, Lease
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.upstream import Message

_log = logging.getLogger("pulsar_retry")

#: Seconds between two checks for a request to stop. Such a request cannot wake a thread that waits
#: in pulsar-client's receive.
_STOP_CHECK_INTERVAL = 0.25

#: Seconds between two checks of the connection while messages wait in hand. It must be short: a
#: consumer that the broker has disconnected is connected again after a tenth of a second.
_CONNECTION_CHECK_INTERVAL = 0.025

#: How many messages are received at once at most.
_MOST = 256

#: If the workers handle all messages that were received at once within these seconds, more are
#: received next time. If they need more than five times as long, fewer are received.
_SHORT_BATCH_SECONDS = 0.005

#: If a handler takes fewer seconds than this, one worker is enough. Two active workers would pass
#: the interpreter's lock to each other at every call of pulsar-client, which costs more.
_QUICK_HANDLER_SECONDS = 0.0001

#: Seconds that waking a worker, and being woken by it, may take on a busy machine.
_WAKE_SECONDS = 0.001

#: Seconds for more messages to arrive, of which the breaker chooses the next one that is tried.
_A_MOMENT = 0.05

#: Seconds of a pause after which other consumers get the messages that were fetched.
_REST_AFTER = 5.0

#: Seconds for which the attempts in lanes are remembered after that.
_REMEMBERED = 3600.0


class FlowGate:
    """Closes when the load reaches 1.0, and opens again when it is below 0.8."""

    def __init__(self, limits: FlowControl) -> None:
        self._limits = limits
        self._paused = False

    def load(self, messages: int, size: int) -> float:
        """Return how much of the limits is used: the larger of the two ratios, 1.0 at a limit."""
        return max(messages / self._limits.max_messages, size / self._limits.max_bytes)

    def is_open(self, messages: int, size: int) -> bool:
        """Tell whether one more message may be received while this much is in hand."""
        load = self.load(messages, size)
        self._paused = load >= (RESUME if self._paused else PAUSE)
        return not self._paused


class Receiver:
    """Receives messages for the workers of one subscription, on the receiving thread.

    Attributes:
        gate: Knows how much of the limits of flow control is used.
        is_resting: Whether the consumer is closed because of a long pause.
    """

    def __init__(
        self,
        hand: Hand,
        settler: Settler,
        *,
        flow_control: FlowControl,
        lease: Lease,
        lanes: OrderedLanes | None,
        keeps: bool = False,
        breaker: BreakerGate | None,
        admission: AdmissionControl | None,
        probe: Callable[[], Future[None]],
        supervise: Callable[[float], None] = lambda _now: None,
        about: dict[str, str] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make the receiver.

        For *keeps*, see `Opened`. *probe* asks the broker for the topics, and returns the future of
        the answer. *supervise* replaces workers that hang or have died; its argument is the time.
        *about* is what the log says of the subscription.
        """
        self._supervise = supervise
        self._about = about
        self._now = clock.monotonic
        self._hand = hand
        self._settler = settler
        self._handle = handle = settler.handle
        self._flowing, self._whole = handle.receiving.flowing, handle.whole
        self._receive = settler.consumer.receive
        self._consumer = settler.consumer
        self._limits = flow_control
        self.gate = FlowGate(flow_control)
        self._lanes = lanes
        self._keeps = keeps
        self._breaker = breaker
        self._admission = admission
        self._probe = ConnectionProbe(probe, self._now)
        self._longest = lease.max_total
        self._interval = min(_STOP_CHECK_INTERVAL, lease.max_total / 4)
        self._idle_interval = max(self._interval, clock.interval(_STOP_CHECK_INTERVAL))
        self._glance = clock.interval(_CONNECTION_CHECK_INTERVAL)
        self._cut: frozenset[bool] = frozenset()
        self._next_look = self._next_supervision = 0.0
        self._batch_size = 1
        self._is_quick = False
        self._handed_out_at = 0.0
        self._handed_out = 0
        self._pausing_since: float | None = None
        self.is_resting = False
        self._next_try, self._pause = 0.0, FIRST_PAUSE
        self._refusal: str | None = None  # why it could not be opened again
        self._denials = 0  # how many final ones came in a row
        self._renewal = Renewal(handle.in_hand.main.raw, self._now, hand.notify)

    def run(self) -> None:
        """Receive until `Hand.is_stopping`.

        Raises:
            pulsar.PulsarException: the subscription cannot go on.
            Exception: a handler has raised an error that ends the subscription, or the workers are
                lost.
        """
        hand = self._hand
        self._batch_size = len(hand.slots)
        while not hand.is_stopping:
            if self._settler.fatal is not None:
                raise self._settler.fatal
            wait = self.look()
            if self._admission is not None:
                self._let_out(self._admission)
            is_asleep = self.is_resting and not self._wakes_up()
            if is_asleep or hand.paused is not None:
                if self._handle.outbox.closed:  # no receive would say so
                    raise pulsar.AlreadyClosed("Pulsar error: AlreadyClosed")
                hand.wait(wait)
            elif self._breaker is not None and self._breaker.is_open:
                self._try_messages(self._breaker, wait)
            elif not self._is_wanted():
                self._await_workers(wait)
            else:
                self._receive_some(wait)

    def _receive_some(self, wait: float) -> None:
        """Receive messages for idle workers, within *wait* seconds."""
        self._adapt()
        if self._hand.queue is self._hand.gated or not (room := self._room()):
            self._hand.wait(wait)
        elif self._admission is not None and self._is_paced(self._admission):
            self._fill(room, None)
            self._await_workers(wait)
        else:
            self._fill(room, wait)

    def _is_wanted(self) -> bool:
        """Tell whether to receive more: a worker is idle, or will be soon."""
        ready = len(self._hand.ready) if self._admission is None else self._unsent()
        return ready < self._hand.low or bool(self._hand.idle and not ready)

    def _is_paced(self, admission: AdmissionControl) -> bool:
        """Tell whether messages are ready that the admission control lets out at its own pace.

        If so, this thread waits on the queue, which wakes it when the time comes. A receive would
        not.
        """
        return bool(self._hand.ready) and admission.outlook().is_paced

    def _let_out(self, admission: AdmissionControl) -> None:
        """Wake workers for messages that became ready while none could be let out."""
        if self._hand.ready and self._hand.idle:
            self._hand.wake(min(admission.may_begin(), len(self._hand.ready)))

    # -- receiving ------------------------------------------------------------------------------

    def _room(self) -> tuple[int, int] | None:
        """Return how many messages and bytes may be received now; None: nothing.

        Messages in parked lanes have a limit of their own, and keep no others out.
        """
        lanes, most = self._lanes, self._at_a_time()
        count, size = self._hand.in_hand()
        if lanes is not None:
            if lanes.is_full or (self._renewal.is_pending and not self._renewal.is_over()):
                return None
            count -= lanes.set_aside
        if most <= 0 or not self.gate.is_open(count, size):
            return None
        return min(most, self._limits.max_messages - count), self._limits.max_bytes - size

    def _try_messages(self, breaker: BreakerGate, wait: float) -> None:
        """While the breaker is not closed, let as many messages begin as it allows.

        The breaker chooses among many, so many are received before.
        """
        hand, admission = self._hand, self._admission
        if breaker.room() < 1 or (admission is not None and admission.may_begin() < 1):
            hand.wait(wait)
            return
        if not hand.gated and (room := self._room()):
            self._fill(room, wait)
        if hand.gated and breaker.wants_more() and (room := self._room()):
            self._fill(room, _A_MOMENT)
        if not breaker.let_in() and not self._room():
            hand.wait(wait)

    def _fill(self, most: tuple[int, int], wait: float | None) -> None:
        """Receive until no message comes, or until the workers have enough for a moment.

        *most* are the messages and bytes that there is room for. *wait* is how many seconds to wait
        for the first message; None does not wait.
        """
        hand, lanes = self._hand, self._lanes
        settler, own_letters = self._settler, self._settler.own_letters
        room, space = most
        received, total, whole = 0, 0, self._whole
        last: list[Any] = []
        try:
            message = self._first(wait)
            flowing = self._flowing()
            put_up = hand.queue.append  # the gate may have been closed during the wait
            while True:
                if own_letters.is_empty or not settler.is_superfluous(message):
                    length = message._message.length()  # data() would copy it
                    if lanes is not None:
                        lanes.admit(message)
                    elif own_letters.has_copies and settler.is_tried_again(message):
                        last.append(message)
                    else:
                        put_up(message)
                    received += 1
                    total += length
                    if received >= room or total >= space:
                        break
                message = self._receive(0) if flowing is None else whole(flowing(0))
        except pulsar.Timeout:
            pass
        finally:
            hand.queue.extend(last)
            hand.received += received
            hand.received_size += total
        if received:
            if not self._probe.is_idle:
                self._probe.doubt()
            self._handed_out, self._handed_out_at = received, self._now()
            self._next_look = min(self._next_look, self._handed_out_at + self._interval)
            hand.wake(1 if self._is_quick and not hand.is_one_thread else received)

    def _at_a_time(self) -> int:
        """Return how many messages may be received at once."""
        if self._hand.queue is self._hand.gated:
            return max(1, CANDIDATES - len(self._hand.gated))
        if self._admission is not None:  # it decides how many are received ahead
            return self._admission.outlook().room - self._unsent()
        return self._batch_size

    def _unsent(self) -> int:
        """Return how many messages are ready that no handler has begun.

        Messages that are retried in place do not count: they must not keep the messages of other
        keys out.
        """
        ready = self._hand.ready
        if self._lanes is None:
            return len(ready)
        return sum(not message.retries_in_lane for message in ready.copy())

    def _first(self, wait: float | None) -> Any:
        """Return the next message; check the connection if none comes.

        Raises:
            pulsar.Timeout: no message came.
        """
        if wait is None:
            return self._receive(0)
        try:
            return self._receive(max(1, round(wait * 1000)))
        except pulsar.Timeout:
            if not self._consumer.is_connected():
                self._probe.look()
            elif not self._probe.is_idle:
                self._probe.end()
            raise
        except pulsar.Interrupted:
            raise pulsar.Timeout("Pulsar error: Timeout") from None

    def _adapt(self) -> None:
        """Adapt to how quickly the workers handled the last messages."""
        if not self._handed_out:
            return
        took = self._now() - self._handed_out_at
        self._is_quick = took < _WAKE_SECONDS + _QUICK_HANDLER_SECONDS * self._handed_out
        if took < _SHORT_BATCH_SECONDS and self._handed_out >= self._batch_size:
            self._batch_size = min(_MOST, 2 * self._batch_size)
        elif took > 5 * _SHORT_BATCH_SECONDS:
            self._batch_size = max(1, self._batch_size // 2)
        self._handed_out = 0

    def _await_workers(self, wait: float) -> None:
        """Wait until a worker is idle; wake more workers if that takes long."""
        hand = self._hand
        waits = self._admission is not None and self._admission.may_begin() < 1
        if waits or not (hand.ready and hand.idle):
            hand.wait(wait)
        elif not hand.wait(min(wait, _SHORT_BATCH_SECONDS)):
            self._is_quick = False
            hand.wake(len(hand.ready))

    # -- leases, lanes and the workers ------------------------------------------------------------

    def look(self) -> float:
        """Check leases, lanes and the connection; return the seconds until the next check."""
        now = self._now()
        if now >= self._next_look:
            self._next_look = now + self._idle_interval
            if self._hand.is_running() or self._hand.ready:
                self._next_look = now + self._interval
                self._look_at_leases(now)
            if now >= self._next_supervision:
                self._next_supervision = now + self._idle_interval
                self._supervise(now)
        wait = self._next_look - now
        if self._look_at_connection():
            wait = min(wait, self._glance)
        if self._hand.gated:
            self._hand.let_go()
        if self._breaker is not None and self._breaker.is_open:
            wait = min(wait, self._breaker.wait())
        if self._admission is not None:
            wait = min(wait, self._admission.outlook().wait)
        if self._lanes is not None:
            wait = min(wait, self._lanes.tick())
        wait = min(wait, self._look_at_pauses(now))
        return max(0.001, wait)

    def _look_at_leases(self, now: float) -> None:
        """Start a lease for slow handlings, and take away messages whose lease has expired.

        A quick handling never gets a lease, so that leases cost nothing for the usual message.
        """
        for slot in list(self._hand.slots):
            if (message := slot.work) is not slot.seen:
                slot.seen, slot.seen_at, slot.watched = message, now, None
            elif message is None or message is slot.expired:
                continue
            elif slot.watched is not message:
                slot.watched = message  # its worker has seen that when this is called again
            elif now >= slot.seen_at + self._longest:
                slot.seen_at = now
                self._settler.expire(slot, message)

    # -- new connections --------------------------------------------------------------------------

    def _look_at_connection(self) -> bool:
        """Let go of messages that no handler has begun, if their connection is lost.

        The broker delivers all unacknowledged messages anew. Perhaps the subscription was moved:
        then the broker disconnects its consumers, but gives no reason. Return whether to check
        again soon.
        """
        if self.is_resting:
            return False
        before, self._cut = self._cut, self._handle.cut()
        fresh, lanes = self._cut - before, self._lanes
        # Without the retry topic alone, the topic's messages would have to be asked for again: then
        # they come behind later ones of their keys.
        if not self._keeps and fresh and (lanes is None or False in fresh):
            if lanes is not None:
                self._renewal.lost()  # else what the connection has fetched would overtake these
            self._let_go()
        if lanes is not None and (self._renewal.is_pending or not lanes.is_empty):
            return True
        return bool(self._hand.gated or self._hand.ready)

    def _let_go(self) -> None:
        """Let go of messages that no handler has begun. The broker may deliver them again."""
        if self._lanes is not None:
            self._lanes.begin_anew()
        for message in self.take_down():
            self._settler.let_go(message, self._cut)

    def take_down(self, *, ready: bool = True) -> list[Message]:
        """Remove and return the messages in hand that no handler has begun.

        Unless *ready*, those stay that a worker will take next.
        """
        found = self._hand.unstarted() if ready else self._hand.take_gated()
        return found if self._lanes is None else [*found, *self._lanes.clear(found)]

    # -- pauses -----------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Return what keeps messages out, in words. Thread-safe."""
        reason = self._hand.paused
        found = [] if reason is None else [f"it is paused: {reason}"]
        found += [] if self._refusal is None else [self._refusal]
        if self._admission is not None and (problem := self._admission.problem()):
            found.append(problem)
        return found if self._lanes is None else found + self._lanes.problems()

    def _is_pausing(self) -> bool:
        """Tell whether nothing may begin for a while, whatever ends."""
        breaker, admission = self._breaker, self._admission
        return (
            self._hand.paused is not None
            or (breaker is not None and breaker.is_open and breaker.is_pausing())
            or (admission is not None and admission.outlook().wait < math.inf)
        )

    def _look_at_pauses(self, now: float) -> float:
        """Begin to rest if a pause has lasted for a while; return the seconds until the next step.

        What was fetched belongs to other consumers then, so the consumer is closed until the pause
        is over. A request for redelivery would not do: pulsar-client's permits would still be
        there, and the broker would deliver here again.
        """
        if self.is_resting:
            return self._next_try - now if self._next_try > now else math.inf
        if not self._is_pausing() or self._hand.is_running() or self._handle.is_busy:
            self._pausing_since = None
        elif self._pausing_since is None:
            self._pausing_since = now
        elif now >= self._pausing_since + _REST_AFTER:
            self._rest()
        since = self._pausing_since
        return math.inf if since is None else since + _REST_AFTER - now

    def _rest(self) -> None:
        """Close the consumer, so that the broker delivers to others what no handler has begun."""
        for message in self.take_down():
            self._settler.remember(message, _REMEMBERED)
            self._hand.settled(message)
        self._settler.own_letters.closed(by_hand=self._hand.paused is not None)
        self._handle.suspend()
        self.is_resting, self._pausing_since = True, None
        self._next_try, self._pause = 0.0, FIRST_PAUSE

    def _wakes_up(self) -> bool:
        """Subscribe again when the pause is over; tell whether that has worked."""
        now = self._now()
        if self._is_pausing() or now < self._next_try:
            return False
        try:
            self._handle.resume()
        except (*TRANSIENT, *FATAL, pulsar.ConsumerBusy) as error:
            self._denials = self._denials + 1 if isinstance(error, FATAL) else 0
            if self._denials >= ENOUGH_ERRORS:
                raise
            name = self._handle.plan.subscription
            text = f"the subscription {name!r} could not be opened again; that is repeated: {error}"
            _log.warning("%s", text, extra=self._about)
            self._refusal = text
            self._next_try = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._hand.notify()  # for the time of the next try
            return False
        self._settler.own_letters.opened()
        self.is_resting, self._cut = False, frozenset()
        self._refusal, self._denials = None, 0
        raw = self._consumer._consumer = self._handle.in_hand.main.raw
        self._renewal = Renewal(raw, self._now, self._hand.notify)
        return True
