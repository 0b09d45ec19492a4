"""The managed subscriber: it receives messages, calls your handler, and settles."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections import Counter
from typing import Self

import attrs
import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.errors import noted
from pulsar_retry.observe.counting import COUNTERS, topic_label
from pulsar_retry.policy.checks import Duration, not_blank, seconds
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.course import Course
from pulsar_retry.pull.crew import Crew
from pulsar_retry.pull.engine.breaker import BreakerGate
from pulsar_retry.pull.engine.connection import FIRST_PAUSE, LONGEST_PAUSE, TRANSIENT
from pulsar_retry.pull.engine.hand import PAUSED, Hand
from pulsar_retry.pull.engine.lanes import OrderedLanes
from pulsar_retry.pull.engine.receiver import FlowGate, Receiver
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.opening import Opened, is_ordered, open_subscription, probe
from pulsar_retry.pull.options import Options, effective
from pulsar_retry.pull.report import (
    ABANDON,
    COUNTED,
    HAND_BACK,
    Health,
    Report,
    StopMode,
    checked_mode,
)
from pulsar_retry.pull.signals import Requests, awaiting_signals
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.exiting import closes

_log = logging.getLogger("pulsar_retry")

#: The error text of `result` for a subscriber that was not started.
NOT_STARTED = "the subscriber was not started: call start() or run()"

#: How often the broker has to say in a row that there is no such topic, until that counts. When it
#: starts, it has no namespaces for some seconds.
_ENOUGH_DENIALS = 4


class Subscriber:
    """Calls a handler with every message of a subscription, and settles each message.

    `Client.subscriber` makes one. When the handler returns, the message is acknowledged. When it
    raises, the retry policy decides about the message, and the subscription goes on. Only
    `SystemExit`, `KeyboardInterrupt` and the policy's ``stop_on`` errors end it.

    pulsar-client reconnects by itself after a lost connection. The subscription ends only with an
    error that cannot get better (no authorization, a topic that does not exist any more); `result`
    raises this error.

    Thread-safe. A subscriber runs only once.
    """

    def __init__(self, client: Client, options: Options) -> None:
        self._client = client
        self._options = options
        self._policy = effective(options)
        self._lock = threading.Lock()
        self._clock = client.parts.clock
        self._hand = Hand(self._clock)
        is_paced = options.admission is not None  # to drain, it sends nothing more
        self.course = Course(self._run, self._hand, self._clock, begins_no_more=is_paced)
        self._settler: Settler | None = None
        self._crew: Crew | None = None
        self._consumer: Consumer | None = None
        self._breaker: BreakerGate | None = None
        self._receiver: Receiver | None = None
        self._trouble = ""
        fork.guard(self, "_hand", "_lock")

    # -- starting and stopping ------------------------------------------------------------------

    def start(self) -> Self:
        """Subscribe and start to receive on background threads; return when it is subscribed.

        While the broker is unreachable or too busy, subscribing is tried again in the background,
        with growing pauses. In this case `start` returns after the first attempt, which is logged
        as a WARNING, and `health` gives the reason. A topic or namespace that does not exist is
        asked for four times within 7 s, because a broker that starts has none for a moment.

        Raises:
            RuntimeError: the subscriber was started before.
            pulsar.PulsarException: the broker refuses the subscription, for example because the
                role has no permission, the topic does not exist, or another consumer uses the
                subscription exclusively.
        """
        self.course.begin()
        self.course.opened.wait()
        if (refusal := self.course.refused()) is not None:
            raise refusal
        return self

    def run(self, *, mode: StopMode = "drain", timeout: Duration = 30.0) -> Report:
        """Run until SIGTERM, SIGINT or `stop`; a signal stops it as *mode* and *timeout* say.

        *mode* and *timeout* are those of `stop`. A second SIGINT abandons what is still in hand. A
        second SIGTERM is only logged, because supervisors may send it several times. Signals are
        handled only if `run` is called on the main thread. The earlier signal handlers are restored
        at the end.

        Returns:
            The report. A process that ends after this has the exit code 0.

        Raises:
            ConfigError: an argument is invalid.
            Exception: the error that ended the subscription.
        """
        checked_mode(mode, timeout)
        with awaiting_signals(self.course.ended) as next_signal:
            self.start()
            requests = Requests(self.course.ask, mode, timeout)
            while (number := next_signal()) is not None:
                requests.told(number)
            return self.result()

    @closes
    def stop(self, mode: StopMode = "drain", timeout: Duration = 30.0) -> Report | None:
        """Stop, and wait until the subscriber has stopped.

        Args:
            mode: ``"drain"`` receives nothing more and handles the messages in hand. Those that
                wait in lanes, or until the breaker closes, are redelivered, also to other
                consumers. ``"hand_back"`` lets running handlers return; all messages that no
                handler has begun are redelivered.
                ``"abandon"`` does not wait: the messages of running handlers are redelivered, and
                the results of these handlers are ignored.
            timeout: Seconds or a timedelta, for the first two modes. After it, what is left is
                abandoned. If the broker does not answer, closing takes up to the client's
                ``operation_timeout_seconds`` more, and a WARNING names the error.

        Returns:
            The report. None if the subscriber was not started, if its own handler or a signal
            handler calls `stop` (they cannot wait; for signals, see `Client.close`), or if an error
            has ended the subscription; `result` raises that error.

        Raises:
            ConfigError: an argument is invalid.
        """
        checked_mode(mode, timeout)
        if not self.course.has_begun:
            return None
        self.course.ask(mode, timeout)
        if self.course.is_handling:
            return None
        self.course.ended.wait()
        return self.course.report

    def result(self, timeout: Duration | None = None) -> Report:
        """Wait until the subscription has ended, and return the report.

        Args:
            timeout: Seconds or a timedelta. None waits without a limit.

        Raises:
            TimeoutError: the subscription has not ended in this time.
            RuntimeError: the subscriber was not started.
            Exception: the error that ended the subscription, if `stop` did not end it: for example
                `pulsar.AuthorizationError` or `pulsar.TopicNotFound`.
        """
        wait = None if timeout is None else seconds("timeout", timeout)
        if not self.course.has_begun:
            raise RuntimeError(NOT_STARTED)
        if not self.course.ended.wait(wait):
            raise TimeoutError("the subscription has not ended yet")
        if (error := self.course.failed()) is not None:
            raise error
        assert self.course.report is not None  # there is an error or a report
        return self.course.report

    @property
    def running(self) -> bool:
        """Whether the subscriber was started and has not ended."""
        return self.course.has_begun and not self.course.ended.is_set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop()
        if kind is None and (error := self.course.unraised()) is not None:
            raise error

    # -- while it runs --------------------------------------------------------------------------

    def update_policy(self, retry_policy: RetryPolicy) -> None:
        """Use another policy for all later failures, without a restart.

        Attempts are not counted again: a message that has had more attempts than the new policy
        allows is dead-lettered at its next failure. If the new policy has no ``max_attempts``, or
        math.inf, the count of the subscriber's ``dead_letter_policy`` applies, as at the start.

        Raises:
            ConfigError: *retry_policy* is not a `RetryPolicy`.
        """
        with self._lock:
            options = attrs.evolve(self._options, retry_policy=retry_policy)
            policy = effective(options)
            self._options, self._policy = options, policy
            if self._settler is not None:
                self._settler.policy = policy

    def pause(self, reason: str = "paused") -> None:
        """Begin no more messages until `resume`; running handlers are settled as usual.

        After 5 s without running handlers, the consumer is closed until then, so that the broker
        delivers to other consumers what was fetched here. The subscriber's health is ``degraded``.

        Args:
            reason: Why, in words, for the health.

        Raises:
            ConfigError: *reason* is not text, or is blank.
        """
        not_blank("reason", reason, "a text that is not blank")
        self._hand.close_gate(PAUSED, reason)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._hand.open_gate(PAUSED)

    @property
    def health(self) -> Health:
        """The current state, and in words what is wrong."""
        if not self.course.has_begun:
            return Health("new")
        if self.course.ended.is_set():
            error = self.course.error
            return Health("stopped") if error is None else Health("failed", _text_of(error))
        consumer, crew, receiver = self._consumer, self._crew, self._receiver
        if self.course.stop is not None:
            return Health("stopping")
        if consumer is None or crew is None or receiver is None:
            return Health("starting", self._trouble)
        problems = crew.problems()
        if self._breaker is not None and (problem := self._breaker.problem()):
            problems.append(problem)
        problems += receiver.problems()
        if stuck := consumer.handle.outbox.hand_off.stuck:
            problems.append(f"{stuck} letters could not be published yet; publishing is repeated")
        if not (consumer.is_connected() or receiver.is_resting):
            problems.append("the connection to the broker is lost")
        return Health("degraded", "; ".join(problems)) if problems else Health("running")

    @property
    def in_hand(self) -> tuple[int, int]:
        """How many messages, and how many bytes, are in hand: what flow control limits."""
        count, size = self._hand.in_hand()
        return max(0, count), max(0, size)  # a worker may count first

    # -- the receiving thread -------------------------------------------------------------------

    def _run(self) -> None:
        opened: Opened | None = None
        try:
            opened = self._open()
            if opened is None:
                self.course.report = self._reported(Counter(), 0)
            else:
                self._serve(opened)
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            if isinstance(error, pulsar.AlreadyClosed):
                error.add_note("The client was closed before the subscriber was stopped")
            self.course.error = error
            name = self._options.subscription
            text = "the subscription %r has ended: %s"
            _log.error(text, name, _text_of(error), extra=self._facts())
            counters = COUNTERS.of(self._options.topic, name)
            counters.count("subscriptions_failed", type(error).__name__)
        finally:
            self._hand.close()
            if opened is not None:
                self._close(opened.consumer)
            self.course.report_ended()

    def _close(self, consumer: Consumer) -> None:
        """Close the consumer; an error is only logged, because the end must be reported."""
        try:
            with contextlib.suppress(pulsar.AlreadyClosed):
                consumer.close()
        except Exception as error:  # noqa: BLE001 - as above
            text = "the consumer of the subscription %r was not closed: %s"
            _log.warning(text, self._options.subscription, _text_of(error), extra=self._facts())

    def _open(self) -> Opened | None:
        """Subscribe as soon as the broker answers; return None if `stop` was called before.

        Raises:
            Exception: the broker refuses the subscription.
        """
        pause, denials = FIRST_PAUSE, 0
        while self.course.stop is None:
            try:
                return open_subscription(self._client, self._options)
            except Exception as error:
                denials = denials + 1 if isinstance(error, pulsar.TopicNotFound) else 0
                if not (isinstance(error, TRANSIENT) or 0 < denials < _ENOUGH_DENIALS):
                    if not self.course.opened.is_set():
                        self.course.refusal = error
                    raise
                text = (
                    "the subscription %r could not be opened, and will be tried again in %g s: %s"
                )
                self._trouble = _text_of(error)
                name = self._options.subscription
                _log.warning(text, name, pause, self._trouble, extra=self._facts())
            if not denials:
                self.course.report_opened()
            again = self._clock.monotonic() + pause
            while self.course.stop is None and (left := again - self._clock.monotonic()) > 0:
                self._hand.wait(left)
            pause = min(2 * pause, LONGEST_PAUSE)
        return None

    def _facts(self) -> dict[str, str]:
        options = self._options
        return {"topic": topic_label(options.topic), "subscription": options.subscription}

    def _serve(self, opened: Opened) -> None:
        consumer, kind, keeps = opened
        options, hand, clock = self._options, self._hand, self._clock
        lanes = None
        if is_ordered(kind):
            lanes = OrderedLanes(options.lanes, hand, kind, clock)
        breaker, about = None, self._facts()
        if options.breaker is not None:
            facts = consumer.handle.facts
            breaker = BreakerGate(options.breaker, hand, facts, about, clock)
        self._consumer, self._breaker = consumer, breaker
        if options.admission is not None:
            options.admission.attach(hand.notify)
        settler = Settler(
            hand,
            consumer,
            self._policy,
            options.letters,
            redelivery=options.redelivery,
            lanes=lanes,
            breaker=breaker,
            clock=clock,
        )
        lost = functools.partial(self.course.ask, "abandon", 0)
        crew = Crew(options, hand, settler, clock, loop=self.course.loop, lost=lost)
        receiver = Receiver(
            hand,
            settler,
            flow_control=options.flow_control,
            lease=options.lease,
            lanes=lanes,
            keeps=keeps,
            breaker=breaker,
            admission=options.admission,
            probe=lambda: probe(self._client, options.topic),
            supervise=crew.look,
            about=about,
            clock=clock,
        )
        with self._lock:
            settler.policy = self._policy
            self._settler, self._crew, self._receiver = settler, crew, receiver
        gauges = _Gauges(self, receiver.gate, crew)
        counters = settler.handle.watch.counters
        counters.attach(gauges)
        self.course.report_opened()
        try:
            receiver.run()
        finally:
            handed_back = self._finish_in_hand(receiver)
            counters.detach(gauges)
        self.course.report = self._reported(settler.counts, handed_back)

    def _finish_in_hand(self, receiver: Receiver) -> int:
        """Wait for the messages in hand as the stop mode says; return how many were not handled."""
        hand, handed_back = self._hand, 0
        if self._settler is not None:  # only receipts are waited for
            self._settler.handle.outbox.hand_off.stop_waiting()
        while (stop := self.course.stop) is not None and stop.mode != ABANDON:
            # A dispatcher sends nothing more, however little it would take.
            is_ready_too = stop.mode == HAND_BACK or self._options.admission is not None
            handed_back += self._hand_back(receiver, ready=is_ready_too)
            left = stop.deadline - self._clock.monotonic()
            if left <= 0 or hand.in_hand()[0] <= 0:
                break
            hand.wake(len(hand.ready))
            hand.wait(min(left, receiver.look()))
        for slot in hand.slots:  # the results of these handlers are ignored
            if (message := slot.work) is not None:
                slot.watched = message
                slot.expire(message, interrupts=False)
        return handed_back + self._hand_back(receiver, ready=True)

    def _hand_back(self, receiver: Receiver, *, ready: bool) -> int:
        """Give up messages that no handler has begun; closing the consumer redelivers them."""
        unstarted = receiver.take_down(ready=ready)
        for message in unstarted:
            self._hand.settled(message)
        return len(unstarted)

    def _reported(self, counted: Counter[str], handed_back: int) -> Report:
        stop = self.course.stop
        assert stop is not None  # otherwise an error ended the subscription
        held = self._hand.in_hand()[0]
        return Report(
            mode=stop.mode,
            acknowledged=counted["acknowledged"] + self._hand.done(),
            handed_back=handed_back,
            abandoned=held,
            seconds=self._clock.monotonic() - stop.asked_at,
            **{name: counted[name] for name in COUNTED},
        )


@attrs.frozen(eq=False)
class _Gauges:
    """Gives the current state of a subscriber to the metrics. Thread-safe."""

    _subscriber: Subscriber
    _gate: FlowGate
    _crew: Crew

    def gauges(self) -> dict[str, float]:
        """Return the messages in hand, the load, and the problems."""
        count, size = self._subscriber.in_hand
        return {
            "inflight": float(count),
            "load_ratio": self._gate.load(count, size),
            "abandoned_handlers": float(self._crew.abandoned()),
            "degraded": float(self._subscriber.health.state == "degraded"),
        }


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {noted(error)}"
