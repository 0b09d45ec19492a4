"""Hands on the usual retry letters, whose properties are made in C++."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pulsar_retry.consumer.handoff.flight import InFlightLetter
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.native import NativeProducer
from pulsar_retry.consumer.handoff.producers import USUAL
from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.letters.letter import DelayRequest
from pulsar_retry.letters.plan import Plan
from pulsar_retry.native.loading import native
from pulsar_retry.wire.names import logical

#: A producer, and the longest delay that its topic has accepted.
OpenProducer = tuple[NativeProducer, float]

#: No count is greater: Java reads an int.
_MAX_COUNT = 2**31 - 1


class UsualLetters:
    """What the usual retry letters of a subscription have, which C++ makes. Thread-safe.

    Attributes:
        rule: What `NativeProducer.retry` needs.
    """

    def __init__(self, module: Any, plan: Plan) -> None:
        """Make it for a plan with retries."""
        assert plan.topics is not None  # noqa: S101 - the caller has checked
        assert plan.policy is not None  # noqa: S101 - a plan with topics has a policy
        self._topic = plan.topics.retry
        most = min(plan.policy.max_redeliver_count, _MAX_COUNT)
        levels = plan.levels.delays
        self.rule = module.Rule(self._topic, plan.subscription, most, levels, plan.naming.is_tdmq)
        self._known: set[str] = set()

    def producer(self, hand_off: HandOff) -> OpenProducer | None:
        """Return the producer, if letters can be made in C++ now: it is open, for example."""
        return hand_off.producers.usual(self._topic)

    def hand_on(
        self,
        hand_off: HandOff,
        found: OpenProducer | None,
        raw: Any,
        source: Any,
        request: DelayRequest,
        *,
        was_letter: bool,
        waits: bool,
        ended: Callable[[], None] | None = None,
    ) -> Future[None] | None:
        """Do what `HandOff.hand_on` does with a usual letter; otherwise return None.

        *found* is what `producer` has just returned. With *waits* the call blocks until there is
        room; without, it returns None then.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        flight = InFlightLetter(hand_off, raw, source, None, was_letter=was_letter)
        flight.request, flight.ended = request, ended
        if not hand_off.permits.take(flight.size):
            if not waits:
                return None
            hand_off.permits.acquire(flight.size)
            found = self.producer(hand_off)  # it may be another one now
        if found is None or hand_off.closed:
            hand_off.permits.release(1, flight.size)
            if hand_off.closed:
                raise ConsumerClosedError("the consumer is closed")
            return None
        flight.producer, longest = found
        flight.key = USUAL
        hand_off.flights[flight] = True
        try:
            hand_off.expect_receipts()
            flight.deadline = hand_off.clock.monotonic() + hand_off.patience
            now = hand_off.clock.time()
            if not flight.producer.retry(self.rule, flight, request, longest, now):
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


def usual_letters(plan: Plan) -> UsualLetters | None:
    """Return a new `UsualLetters`, or None if each letter of *plan* must be made in Python."""
    module = native().module
    if module is None or plan.topics is None or (plan.hooks and plan.hooks.on_retry):
        return None
    return UsualLetters(module, plan)
