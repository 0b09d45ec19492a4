"""What a consumer is made of. Its methods use it, and so do the rooms above the consumer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pulsar

from pulsar_retry.consumer.handoff.writer_schemas import letters_schema
from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.lost_chunks import LostChunks
from pulsar_retry.consumer.outbox import Outbox
from pulsar_retry.consumer.parts import ClientParts
from pulsar_retry.consumer.receiving import Receiving
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.facts import Facts, facts_of
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.counting import COUNTERS
from pulsar_retry.observe.hooks import Hooks, watch_of
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.exiting import waited_for
from pulsar_retry.runtime.upstream import comes_again, message_of, raw_of
from pulsar_retry.runtime.worker import side_by_side


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
        self.watch = watch = watch_of(counters, hooks, plan.recipient)
        if parts.instrument is not None:
            watch.add(parts.instrument(plan.subscription))
        self.in_hand = in_hand = InHand(plan, timer, clock, watch)
        self.outbox = outbox = Outbox(
            client,
            schema,
            plan,
            timer=timer,
            clock=clock,
            watch=watch,
            in_hand=in_hand,
        )
        self.receiving = Receiving(
            in_hand,
            outbox,
            plan=plan,
            schema=self.schema,
            clock=clock,
            batch_limits=batch_limits,
            polls=polls,
        )
        self._lost_chunks = LostChunks(in_hand, outbox, timer)
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

    def listener(self, deliver: Callable[[Any], Any], *, letters: bool = False) -> Any:
        """Wrap *deliver* in the form that pulsar-client calls for the topic or the retry topic."""
        self.in_hand.listens = True

        def came(_bare: Any, message: Any) -> None:
            self._opened.wait()  # the first message can arrive before `subscribe` has returned
            if self.in_hand.main.raw is not None:  # otherwise opening failed; it is redelivered
                self.receiving.deliver(message, deliver, letter=letters)

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
        if self.in_hand.letters is not None:
            self.in_hand.letters.all_come_again()
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
        self._lost_chunks.close()
        self.in_hand.close()
        self.watch.counters.detach(self.in_hand)
        closing = self.outbox.close(until) + raws
        side_by_side(closing, threads=self._parts.letter_client is not None, until=until)

    def give_up(self) -> None:
        """Fail the letters in flight, because pulsar-client was shut down."""
        self.watch.counters.detach(self.in_hand)
        self.outbox.give_up()
        self.receiving.close()

    # -- messages -------------------------------------------------------------------------------

    def facts(self, message: Any) -> Facts:
        """Return what *message* says about its origin."""
        return facts_of(message, self.plan.recipient)

    def whole(self, raw: Any) -> pulsar.Message:
        """Return the message for a raw one of `Receiving.flowing`, as `Consumer.receive` does."""
        self.in_hand.took((raw,))
        return message_of(raw, self.schema, letter=False)

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
        return self.outbox.in_flight > 0 or self.in_hand.pending_nacks > 0

    # -- what is redelivered without being retried ------------------------------------------------

    def not_handed_on(self, raw: Any) -> None:
        """Have a message redelivered whose hand-off did not begin."""
        if not self.outbox.closed:  # otherwise the broker redelivers it anyway
            self.in_hand.come_back(raw, letter=self.in_hand.is_letter(raw))

    def cut(self) -> frozenset[bool]:
        """Return which raw consumers have no connection: True stands for the retry topic's."""
        sources = self.in_hand.sources
        return frozenset(
            bool(place) for place, each in enumerate(sources) if not each.raw.is_connected()
        )

    def let_go(self, message: Any, cut: frozenset[bool]) -> None:
        """Have *message* redelivered; for *cut*, see `cut`.

        No request is needed if its raw consumer is cut off and reads no other topic or partition,
        because that one might still be connected.
        """
        comes_with_it = comes_again(raw_of(message), self.plan.topic)
        if comes_with_it and self.in_hand.is_letter(message) in cut:
            self.in_hand.settled += 1
        else:
            self.ask_back(message)

    def ask_back(self, message: Any, delay: float = 0.0) -> None:
        """Have *message* redelivered after *delay* seconds, which does not count as a retry."""
        raw, in_hand = raw_of(message), self.in_hand
        in_hand.returns.given_back(raw)
        in_hand.redeliver(raw, delay, letter=in_hand.is_letter(message))
