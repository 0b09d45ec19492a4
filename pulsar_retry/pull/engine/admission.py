"""Admission control: how many messages a subscriber takes in, and when, beside flow control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class AdmissionControl(Protocol):
    """Limits how many messages a subscriber takes in. Thread-safe: several threads call it.

    The receiving thread calls `room` before it receives. A worker calls `enter` before it begins to
    handle a message. Messages that were received but not let out yet wait. A subscriber that is
    stopped gives them back.
    """

    def attach(self, changed: Callable[[], None]) -> None:
        """Register *changed*, which is called when more messages may pass than before."""

    def room(self, waiting: int) -> int:
        """Return how many more may be received, while *waiting* messages were not let out yet."""

    def free(self) -> int:
        """Return how many messages `enter` would let pass now."""

    def wait(self) -> float:
        """Return the seconds until there may be more room, if nothing else happens."""

    def enter(self) -> bool:
        """Tell whether a message may be handled now. If so, it counts as being handled."""

    def forget(self) -> None:
        """Take back the last `enter`: there was no message left to handle."""

    def is_backing_off(self) -> bool:
        """Tell whether messages are let out one at a time, with pauses."""

    def shut(self) -> None:
        """Let no more messages pass: the subscriber stops."""

    def is_shut(self) -> bool:
        """Tell whether no message may pass for now, however few are in hand."""
