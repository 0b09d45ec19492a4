"""What a consumer is made of. Its methods use it, and so do the rooms above the consumer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.sending import NewMessage
from pulsar_retry.consumer.handoff.writer_schemas import letters_schema
from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.outbox import Outbox
from pulsar_retry.consumer.receiving import Receiving
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.facts import Facts, facts_of
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.counting import COUNTERS, Counters
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.observe.watch import Watch
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock, Timer
from pulsar_retry.runtime.exiting import waited_for
from pulsar_retry.runtime.upstream import comes_again, message_of, raw_of
from pulsar_retry.runtime.worker import side_by_side
from pulsar_retry.wire.owner import Recipient


@attrs.frozen(eq=False, kw_only=True)
class ClientParts:
    """What a client has beside pulsar-client's own, for its consumers and the rooms above.

    Attributes:
        clock: The clock, which tests can replace.
        timer: Makes delayed calls: one for each client, and so one thread for each client.
        operation_timeout: Seconds that pulsar-client waits for the answer to an operation.
        new_message: Makes the builder of a raw message that the raw client can send.
        letter_client: Publishes the letters. It is a separate client, so that the other one keeps
            its connection when a broker refuses a letter. It connects at the first letter. None:
            the broker is in memory.
        new_watch: Makes the watch of a consumer.
    """

    clock: Clock
    timer: Timer
    operation_timeout: float
    new_message: NewMessage
    letter_client: pulsar.Client | None
    new_watch: Callable[[Counters, Recipient, Hooks | None], Watch]


class Handle:
    """The parts of one consumer. Thread-safe.

    Attributes:
        plan: The checked settings.
        schema: The schema that decodes values.
        timer: The timer of the client.
        watch: Is notified of what happens to messages.
        in_hand: Knows where each received message came from, acknowledges it there, and nacks.
        outbox: Makes letters, and hands messages on.
        receiving: Receives, and sorts out what the application need not handle.
        closing: Held while the consumer is closed, and while raw consumers are opened again in it.
        closed_by: The thread that has begun to close the consumer; 0: none.
    """

    def __init__(
        self,
        client: Any,
        schema: Any,
        plan: Plan,
        hooks: Hooks | None,
        *,
        batch_limits: tuple[int, int, int],
        polls: bool,
    ) -> None:
        """Make them; see `Receiving` for *batch_limits* and *polls*."""
        parts: ClientParts = client.parts
        clock, timer = parts.clock, parts.timer
        self.plan, self.schema, self.timer = plan, letters_schema(schema), timer
        self._parts = parts
        counters = COUNTERS.of(plan.topic, plan.subscription)
        self.watch = watch = parts.new_watch(counters, plan.recipient, hooks)
        self.in_hand = in_hand = InHand(plan, timer, clock, watch)
        policy = plan.policy
        hand_off = HandOff(
            client,
            schema,
            max_pending=plan.max_pending_letters,
            send_timeout=plan.letter_send_timeout,
            dead_letter_subscription=None if policy is None else policy.initial_subscription_name,
            come_back=in_hand.hand_off_failed,
            handed_on=in_hand.handed_on,
            timer=timer,
            watch=watch,
            clock=clock,
            new_message=parts.new_message,
            encryption=plan.letter_encryption,
            # The messages of the broker in memory are not pulsar-client's.
            natively=policy is not None and parts.new_message is _pulsar.MessageBuilder,
        )
        self.outbox = outbox = Outbox(plan, hand_off, in_hand, clock=clock, watch=watch)
        self.receiving = Receiving(
            in_hand,
            outbox,
            plan=plan,
            schema=self.schema,
            timer=timer,
            clock=clock,
            batch_limits=batch_limits,
            polls=polls,
        )
        self.closing = threading.RLock()
        self.closed_by = 0
        self._opened = clock.event()
        counters.attach(in_hand)
        fork.guard(self, "timer")

    # -- opening and closing ----------------------------------------------------------------------

    @contextlib.contextmanager
    def opened_by(self, subscribe: Callable[[], tuple[Any, Any]]) -> Iterator[None]:
        """Open the raw consumers of the topic and the retry topic; `resume` does it again.

        Listeners wait until the block has ended: the consumer is complete, or has failed to open.
        """
        self._subscribe = subscribe
        try:
            self._open(*subscribe())
            yield
        finally:
            self._opened.set()

    def _open(self, main: Any, retry: Any) -> None:
        self.in_hand.open(main, retry)
        self.receiving.open()

    def listener(self, deliver: Callable[[Any], Any]) -> Any:
        """Wrap *deliver* in the form that pulsar-client calls for either topic."""
        self.in_hand.listens = True

        def came(_bare: Any, message: Any) -> None:
            self._opened.wait()  # the first message can arrive before `subscribe` has returned
            if self.in_hand.main.raw is not None:  # otherwise opening failed; it is redelivered
                self.receiving.deliver(message, deliver)

        return waited_for(came)

    # -- a long pause -----------------------------------------------------------------------------

    def suspend(self) -> None:
        """Close the raw consumers, so that the broker delivers what is unacknowledged to others.

        What the consumer knows stays: the letters that it has seen, their producers, its counts.
        Call it only while no letter is in flight, and not for a consumer with a listener.
        """
        for source in reversed(self.in_hand.sources):
            source.clear()
            with contextlib.suppress(pulsar.PulsarException):  # a broker that is away forgets it
                source.raw.close()
        self.in_hand.all_redelivered()
        self.receiving.drop()

    def resume(self) -> None:
        """Open the raw consumers again.

        Raises:
            pulsar.PulsarException: the broker refuses that, or does not answer; call it again.
            pulsar.AlreadyClosed: the consumer was closed meanwhile.
        """
        main, retry = self._subscribe()
        with self.closing:
            if self.outbox.closed:
                for raw in filter(None, (main, retry)):
                    with contextlib.suppress(pulsar.PulsarException):
                        raw.close()
                raise pulsar.AlreadyClosed("Pulsar error: AlreadyClosed")
            self._open(main, retry)

    def close(self, raws: list[Callable[[], None]]) -> None:
        """Wait for letters in flight, then close what they needed, and call *raws*."""
        until = self.timer.now() + self._parts.operation_timeout
        self.timer.discard(self.receiving)
        self.in_hand.close()
        self.watch.counters.detach(self.in_hand)
        closing = self.outbox.hand_off.close(until) + raws
        side_by_side(closing, threads=self._parts.letter_client is not None, until=until)

    def give_up(self) -> None:
        """Fail the letters in flight, because pulsar-client was shut down."""
        self.watch.counters.detach(self.in_hand)
        self.outbox.closed = True
        self.outbox.hand_off.give_up()
        self.receiving.close()

    # -- messages -------------------------------------------------------------------------------

    def facts(self, message: Any) -> Facts:
        """Return what *message* says about its origin."""
        return facts_of(message, self.plan.recipient)

    def whole(self, raw: Any) -> pulsar.Message:
        """Return the message for a raw one of `Receiving.flowing`, as `Consumer.receive` does."""
        message = message_of(raw, self.schema, letter=False)
        self.in_hand.took((message,))
        return message

    def cumulatively(self, message: Any) -> Callable[[], None]:
        """Return a function that acknowledges up to *message*, to call after its publication.

        Raises:
            ConfigError: the subscription has no cumulative acknowledgement.
        """
        if self.plan.shared:
            raise ConfigError(
                "reconsume_later_cumulative needs an Exclusive or Failover subscription"
            )
        return self.in_hand.up_to(message)

    @property
    def is_busy(self) -> bool:
        """Whether letters are in flight or wait, or nacked messages wait for their delay."""
        return self.outbox.hand_off.in_flight > 0 or self.in_hand.pending_nacks > 0

    # -- what is redelivered without being retried ------------------------------------------------

    def cut(self) -> frozenset[bool]:
        """Return which raw consumers have no connection: True stands for the retry topic's."""
        lost = set()
        for source in self.in_hand.sources:
            if not source.raw.is_connected():
                lost.add(source is self.in_hand.retry)
        return frozenset(lost)

    def let_go(self, message: Any, cut: frozenset[bool]) -> None:
        """Have *message* redelivered; for *cut*, see `cut`.

        No request is needed if its raw consumer is cut off and reads no other topic or partition,
        because that one might still be connected.
        """
        comes_with_it = comes_again(raw_of(message), self.plan.topic)
        if comes_with_it and self.in_hand.is_letter(message) in cut:
            self.in_hand.given_back += 1
        else:
            self.ask_back(message)

    def ask_back(self, message: Any, delay: float = 0.0) -> None:
        """Have *message* redelivered after *delay* seconds, which does not count as a retry."""
        self.in_hand.returns.given_back(raw_of(message))
        self.in_hand.redeliver(message, delay)
