"""Notifies the instruments of one consumer of what happens to its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsar_retry.observe.counting import Counters, Counting
from pulsar_retry.observe.hooks import Events, HookCalls, Hooks
from pulsar_retry.observe.instruments import HandOver, Instrument, RetryKind
from pulsar_retry.observe.tracing import INSTALLED, HandOffSpans
from pulsar_retry.wire.owner import Recipient


class Watch(Instrument):
    """Passes each event on to the instruments of one consumer. Thread-safe.

    Instruments that are not used are not there. Acknowledgements are so frequent that
    `Consumer.acknowledge` usually only adds one to `Counters.acknowledged`; see *examines_all*.

    Attributes:
        counters: The counters of its subscription.
        events: Describes messages for the log.
        examines_all: Whether an instrument needs every acknowledgement.
    """

    def __init__(self, counters: Counters, hooks: Hooks | None, recipient: Recipient) -> None:
        self.counters = counters
        self.events = Events(counters.topic, counters.subscription, recipient)
        self.examines_all = hooks is not None and hooks.on_recovered is not None
        instruments: list[Instrument] = [Counting(counters)]
        if INSTALLED:
            instruments.append(HandOffSpans(counters.subscription))
        if hooks is not None:
            instruments.append(HookCalls(hooks, self.events))
        self._instruments = tuple(instruments)

    def add(self, instrument: Instrument) -> None:
        """Notify *instrument* too."""
        self._instruments += (instrument,)

    def settled(self, raw: Any, outcome: str) -> None:
        """See `Instrument.settled`."""
        for each in self._instruments:
            each.settled(raw, outcome)

    def retried(self, raw: Any, kind: RetryKind, delay: float, **known: Any) -> None:
        """See `Instrument.retried`."""
        for each in self._instruments:
            each.retried(raw, kind, delay, **known)

    def handed_on(self, done: Sequence[HandOver]) -> None:
        """See `Instrument.handed_on`."""
        for each in self._instruments:
            each.handed_on(done)

    def failed(self, hand_over: HandOver, error: BaseException) -> None:
        """See `Instrument.failed`."""
        for each in self._instruments:
            each.failed(hand_over, error)
