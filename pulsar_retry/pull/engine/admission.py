"""What lets messages in and out of a subscriber, beside flow control: how many, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class AdmissionControl(Protocol):
    """Holds a subscriber back. Thread-safe: several of its threads ask.

    The receiving thread asks before it receives (`room`), a worker before it begins to handle
    (`enter`). What was let in and not yet out waits; a subscriber that is stopped gives it back.
    """

    def attach(self, changed: Callable[[], None]) -> None:
        """Have *changed* called when it may let more through than before."""

    def room(self, waiting: int) -> int:
        """Return how many more may be received now, with so many waiting to be let out at first."""

    def free(self) -> int:
        """Return how many messages `enter` would let through now."""

    def wait(self) -> float:
        """Return the seconds until there may be more room, if nothing else happens."""

    def enter(self) -> bool:
        """Tell whether a message may be handled now; then it counts as being handled."""

    def forget(self) -> None:
        """Take note that what `enter` let through was not handled: there was nothing any more."""

    def is_backing_off(self) -> bool:
        """Tell whether it lets out one at a time, each a while after the other."""

    def shut(self) -> None:
        """Let nothing through any more: the subscriber ends."""

    def is_shut(self) -> bool:
        """Tell whether nothing is let through for now, however little is in hand."""
