"""A consumer's acknowledgements and nacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import _pulsar

from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.instruments import ACKNOWLEDGED, SUPERSEDED
from pulsar_retry.observe.watch import Watch
from pulsar_retry.runtime.raw import id_of, raw_of
from pulsar_retry.runtime.upstream import Message, is_whole_batch
from pulsar_retry.wire.properties import reconsume_times


class MessageSettler:
    """Acknowledges and nacks messages at the source that they came from. Thread-safe."""

    def __init__(self, in_hand: InHand, plan: Plan, watch: Watch) -> None:
        self._in_hand = in_hand
        self._plan = plan
        self._watch = watch
        self._settled_before = 0  # when everything was redelivered

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message or an id."""
        _check_id(message)
        letter = getattr(message, "is_letter", None)
        if letter is None:
            letter = self._in_hand.is_letter(message)
        self._acknowledge(message, letter=letter)
        self._watch.settled(raw_of(message), ACKNOWLEDGED)
        if isinstance(message, Message):
            message.settled = True

    def settle_as(self, message: Any, outcome: str) -> None:
        """Acknowledge a message that was not handled successfully, and count it as *outcome*."""
        letter = self._in_hand.is_letter(message)
        self._acknowledge(message, letter=letter, handled=outcome != SUPERSEDED)
        self._watch.settled(raw_of(message), outcome)

    def _acknowledge(self, message: Any, *, letter: bool, handled: bool = True) -> None:
        in_hand, letters = self._in_hand, self._in_hand.letters
        source = in_hand.source(letter=letter)
        if letter and letters is not None:
            source.raw.acknowledge(letters.located(message))
            letters.acknowledged(message, handled=handled)
        else:
            source.raw.acknowledge(raw_of(message))
        in_hand.acknowledged(message, source)

    def up_to(self, message: Any) -> Callable[[], None]:
        """Return a function that acknowledges everything up to *message*, as of now."""
        _check_id(message)
        letters = self._in_hand.letters
        if letters is None or self._plan.shared or not letters.includes(message):
            return partial(self._acknowledge_up_to, message)
        earlier = letters.up_to(message)

        def acknowledge() -> None:
            for message_id in earlier:
                self._acknowledge(message_id, letter=True)
                self._watch.settled(message_id, ACKNOWLEDGED)

        return acknowledge

    def _acknowledge_up_to(self, message: Any) -> None:
        in_hand, main = self._in_hand, self._in_hand.main
        main.raw.acknowledge_cumulative(raw_of(message))
        in_hand.all_redelivered()
        if main.nacks.pending:
            is_one = isinstance(self._plan.topic, str)
            main.nacks.cancel_up_to(id_of(message), one_topic=is_one)
        self._watch.settled(raw_of(message), ACKNOWLEDGED)

    # -- nacks ----------------------------------------------------------------------------------

    def nack(self, message: Any, raw: Any, wait: float | None) -> None:
        """Have a message, or the message of an id, redelivered in *wait* seconds.

        If *wait* is None, the delay of the plan is used; it depends on the number of deliveries.
        *raw* is the raw *message*.

        Raises:
            TypeError: *message* is neither a message nor an id.
        """
        in_hand = self._in_hand
        if not isinstance(raw, _pulsar.Message | _pulsar.MessageId):
            raise TypeError(f"expected a message or a message id, not {message!r}")
        letter = in_hand.is_letter(message)
        if wait is None:
            wait = self._plan.nack_backoff.delay(self._deliveries(raw, letter=letter))
        in_hand.nack(raw, letter=letter)(wait)
        # The broker counts nothing there. Several nacks of one delivery are one retry.
        if not self._plan.shared and not letter and not getattr(message, "is_nacked", False):
            in_hand.returns.nacked(id_of(raw))
            if isinstance(message, Message):
                message.is_nacked = True
        self._watch.retried(raw, "nack", wait)

    def _deliveries(self, raw: Any, *, letter: bool) -> int:
        """Return how often a message was delivered, as a letter too; 1 for an id."""
        if not isinstance(raw, _pulsar.Message):
            return 1
        retries = _retries(raw) if letter else 0
        return self._in_hand.returns.attempts_before(raw) + retries + 1

    def hand_off_failed(self, raw: Any, was_letter: bool) -> None:
        """Have a message redelivered whose letter has failed."""
        self._in_hand.settled -= 1
        self._in_hand.come_back(raw, letter=was_letter)

    # -- everything at once ---------------------------------------------------------------------

    def redeliver_everything(self) -> None:
        """Have all unacknowledged messages redelivered, including nacked ones.

        pulsar-client sends acknowledgements late, but this request at once. So it is made after
        those since the last one.
        """
        in_hand = self._in_hand
        waits = in_hand.settled != self._settled_before
        if in_hand.letters is not None:
            in_hand.letters.all_come_again()
        for source in in_hand.sources:
            source.nacks.ask_for_all(waits=waits)
        in_hand.all_redelivered()
        self._settled_before = in_hand.settled

    def close(self) -> None:
        """Drop pending nacks: the broker redelivers these messages at once."""
        for source in self._in_hand.sources:
            source.nacks.close()


def _check_id(message: Any) -> None:
    """Check that the rest of a batch is not acknowledged with an id.

    Raises:
        ConfigError: it would be.
    """
    raw = raw_of(message)
    if isinstance(raw, _pulsar.MessageId) and is_whole_batch(raw):
        accepted = (
            "a message, or what its message_id() returned: pulsar-client takes an id of a message "
            "in a batch that was made from bytes for the whole batch"
        )
        raise ConfigError.bad("message", raw, accepted)


def _retries(raw: Any) -> int:
    """Return how often a message was reconsumed; 0 if pulsar-client cannot read the properties."""
    try:
        return reconsume_times(raw.properties())
    except UnicodeDecodeError:
        return 0
