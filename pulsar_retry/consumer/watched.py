"""Acknowledgements that are counted."""

from __future__ import annotations

from typing import Any

import pulsar

from pulsar_retry.consumer.nacking import NackingConsumer
from pulsar_retry.consumer.raw import raw_of
from pulsar_retry.observe.counting import Ledger
from pulsar_retry.observe.watch import Watch


class WatchedConsumer(NackingConsumer):
    """A `pulsar.Consumer` whose acknowledgements are counted."""

    _watch: Watch
    _ledger: Ledger

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message, or its id."""
        if isinstance(message, pulsar.Message):
            raw = message._message  # noqa: SLF001
            self._consumer.acknowledge(raw)
            message._settled = True  # noqa: SLF001 - see `LetterMaker`
        else:
            raw = raw_of(message)
            self._consumer.acknowledge(raw)
        self._settled += 1
        if self._nacked:
            self._take_back(raw)
        # Written out, for this is what runs once per message.
        ledger = self._ledger
        ledger.acknowledged = count = ledger.acknowledged + 1
        if count >= ledger.due:
            self._watch.acknowledged(raw)

    def acknowledge_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to a message, or its id; it counts as one.

        Raises:
            pulsar.CumulativeAcknowledgementNotAllowedError: on a Shared or Key_Shared subscription.
        """
        super().acknowledge_cumulative(message)
        self._take_back_up_to(message)
        self._counted(raw_of(message))

    @property
    def dropped_duplicates(self) -> int:
        """Second letters of one delivery that were acknowledged here, and not delivered."""
        return 0

    def _counted(self, raw: Any) -> None:
        """Count one acknowledgement, and look at it where that is due."""
        ledger = self._ledger
        ledger.acknowledged = count = ledger.acknowledged + 1
        if count >= ledger.due:
            self._watch.acknowledged(raw)

    def _settle_as(self, message: Any, outcome: str) -> None:
        """Acknowledge a message that has not succeeded, and count it as *outcome*."""
        self._acknowledge_raw(message)
        self._watch.settled(raw_of(message), outcome)

    def _acknowledge_raw(self, message: Any) -> None:
        """Acknowledge without counting."""
        self._consumer.acknowledge(raw_of(message))
        self._settled += 1
        if self._nacked:
            self._take_back(message)
