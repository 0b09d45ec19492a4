"""Hands on letters whose properties are made in C++: the usual ones."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pulsar_retry.consumer.handoff.flight import InFlightLetter, Keep
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.native import NativeProducer
from pulsar_retry.consumer.handoff.producers import OF_DEAD_LETTERS, OF_RETRIES
from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.letters.letter import DeadRequest, Request
from pulsar_retry.letters.plan import Plan
from pulsar_retry.native.loading import native
from pulsar_retry.wire.envelope import OF_A_FAILURE, OWN_ROOM
from pulsar_retry.wire.names import logical

#: A producer, and the longest delay that its topic has accepted.
OpenProducer = tuple[NativeProducer, float]

#: Properties that only Python removes from a letter, besides ``FAILURE_…``.
NOT_KEPT = tuple(OF_A_FAILURE)

#: No count is greater: Java reads an int.
_MAX_COUNT = 2**31 - 1


class NativeLetters:
    """What the letters of a subscription have that C++ makes. Thread-safe.

    Attributes:
        rule: What `NativeProducer.publish_request` needs.
    """

    def __init__(self, module: Any, plan: Plan) -> None:
        """Make it for a plan with retries."""
        assert plan.topics is not None  # noqa: S101 - the caller has checked
        assert plan.policy is not None  # noqa: S101 - a plan with topics has a policy
        self._topics = plan.topics
        most = min(plan.policy.max_redeliver_count, _MAX_COUNT)
        levels = plan.levels.delays
        self.rule = module.Rule(
            plan.topics.retry,
            plan.subscription,
            most,
            levels,
            plan.naming.is_tdmq,
            NOT_KEPT,
            OWN_ROOM,
        )
        self._known: set[str] = set()

    def producer(self, hand_off: HandOff, request: Request) -> OpenProducer | None:
        """Return the producer, if the letter can be made in C++ now: it is open, for example."""
        if isinstance(request, DeadRequest):
            return hand_off.producers.native(self._topics.dead_letter, OF_DEAD_LETTERS)
        return hand_off.producers.native(self._topics.retry)

    def count(self, hand_off: HandOff, raw: Any) -> int | None:
        """Return how often *raw* was reconsumed; None if its dead letter is made in Python now."""
        # Without a producer in C++, the message may be none of pulsar-client's.
        if hand_off.producers.native(self._topics.dead_letter, OF_DEAD_LETTERS) is None:
            return None
        count: int | None = self.rule.count(raw)
        return count

    def hand_on(
        self,
        hand_off: HandOff,
        found: OpenProducer | None,
        raw: Any,
        source: Any,
        request: Request,
        *,
        was_letter: bool,
        waits: bool,
        ended: Callable[[], None] | None = None,
        keep: Keep | None = None,
    ) -> Future[None] | None:
        """Do what `HandOff.hand_on` does if C++ makes the letter; otherwise return None.

        *found* is what `producer` has just returned. With *waits* the call blocks until there is
        room; without, it returns None then.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        flight = InFlightLetter(hand_off, raw, source, None, was_letter=was_letter)
        flight.request, flight.ended, flight.keep = request, ended, keep
        if not hand_off.permits.take(flight.size):
            if not waits:
                return None
            hand_off.permits.acquire(flight.size)
            found = self.producer(hand_off, request)  # it may be another one now
        if found is None or hand_off.closed:
            hand_off.permits.release(1, flight.size)
            if hand_off.closed:
                raise ConsumerClosedError("the consumer is closed")
            return None
        producer, longest = found
        flight.begin(producer, OF_DEAD_LETTERS if isinstance(request, DeadRequest) else OF_RETRIES)
        hand_off.flights[flight] = True
        try:
            hand_off.expect_receipts()
            if not producer.publish_request(self.rule, flight, longest, hand_off.clock.time()):
                del hand_off.flights[flight]
                hand_off.permits.release(1, flight.size)
                self._know(raw.topic_name())
                return None
        except Exception as error:  # noqa: BLE001 - the caller must get every error
            flight.fail(error)
        except BaseException as error:
            flight.fail(error)
            raise
        return flight.future

    def _know(self, topic: str) -> None:
        """Have the letters of messages from *topic* made in C++ from now on."""
        if topic not in self._known:
            self._known.add(topic)
            self.rule.topic(topic, logical(topic))


def native_letters(plan: Plan) -> NativeLetters | None:
    """Return a new `NativeLetters`, or None if each letter of *plan* must be made in Python."""
    module = native().module
    if module is None or plan.topics is None or (plan.hooks and plan.hooks.on_retry):
        return None
    return NativeLetters(module, plan)
