"""One letter in flight, from its making until its message is acknowledged or comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import _pulsar
import attrs

from pulsar_retry.letters.letter import Letter
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.runtime.upstream import error_of

_OK = _pulsar.Result.Ok

#: The states of a flight. MADE: its letter has no producer, or waits for another try. SENT: it
#: waits for the receipt. OUT: the letter is published, and its message is being acknowledged. DONE:
#: the caller knows the result.
MADE, SENT, OUT, DONE = range(4)


class FlightOwner(Protocol):
    """The parts of a hand-off that a flight uses."""

    clock: Clock
    flights: dict[Flight, bool]

    def finish(self, flights: list[Flight], cause: BaseException | None = None) -> None:
        """End flights: without a cause their messages are acknowledged."""

    def not_published(self, flight: Flight, result: _pulsar.Result) -> None:
        """End a flight whose letter was refused or lost."""

    def again(self, failed: Flight) -> None:
        """Publish the letter of a flight again that has failed."""

    def report(self, flight: Flight, error: Exception) -> None:
        """Tell the caller that a flight has failed."""


@attrs.define(eq=False, weakref_slot=False)
class Flight:
    """One letter in flight.

    One is made for each letter. `has_receipt` and `acknowledged` run on pulsar-client's threads
    too, where an exception would end the process.

    Attributes:
        hand_off: The hand-off that it belongs to, the only one that ends it.
        raw: The raw message that the letter was made from.
        source: The raw consumer that acknowledges the message.
        letter: The letter.
        size: The size of its payload in bytes.
        future: The result for the caller.
        was_letter: Whether the message came from the retry topic.
        when_done: Called before the future resolves without an error; None: nothing is called.
        keeps: Whether the letter is published again if that has failed; then its message does not
            come back.
        failures: How often publishing has failed.
        state: MADE, SENT, OUT or DONE.
        outlet: The way of its letter; None before it is known.
        sender: What has sent the letter; None before that, and if it goes out alone.
        job: Its number in C++; 0: it has none.
        deadline: When it is given up, by the monotonic clock.
    """

    hand_off: FlightOwner
    raw: Any
    source: Any
    letter: Letter
    size: int
    future: LetterFuture
    was_letter: bool = attrs.field(kw_only=True)
    when_done: Callable[[], None] | None = attrs.field(default=None, kw_only=True)
    keeps: bool = attrs.field(default=False, kw_only=True)
    failures: int = attrs.field(default=0, kw_only=True)
    state: int = attrs.field(default=MADE, kw_only=True)
    outlet: Any = attrs.field(default=None, kw_only=True)
    sender: Any = attrs.field(default=None, kw_only=True)
    job: int = attrs.field(default=0, kw_only=True)
    deadline: float = attrs.field(default=math.inf, kw_only=True)

    def anew(self) -> Flight:
        """Return a flight for another try. What the first one still hears has no effect on it."""
        return attrs.evolve(self, state=MADE, outlet=None, sender=None, job=0, deadline=math.inf)

    @property
    def is_over(self) -> bool:
        """Whether it is not in flight: it is done, or was given up."""
        return self not in self.hand_off.flights

    def has_receipt(self, result: _pulsar.Result, _message_id: Any = None) -> None:
        """Acknowledge the message if the letter is published. Never raises."""
        try:
            if result != _OK:
                self.state = MADE
                self.hand_off.not_published(self, result)
            elif not self.is_over:  # if it was given up, its message is redelivered
                self.state = OUT
                self.source.acknowledge_async(self.raw, self.acknowledged)
        except BaseException as error:  # noqa: BLE001 - it must not reach the C++ library
            self.hand_off.finish([self], error)

    def acknowledged(self, result: _pulsar.Result) -> None:
        """Take the result of the acknowledgement. Never raises."""
        if result == _OK:
            self.hand_off.finish([self])
        else:
            self.hand_off.finish([self], error_of(result))
