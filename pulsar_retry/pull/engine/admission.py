"""Admission control: how many messages a subscriber takes in, and when, beside flow control."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Outlook(NamedTuple):
    """What may be received, and when more may begin.

    Attributes:
        room: How many messages may wait to begin, those included that may begin now.
        wait: The seconds until more may begin, if nothing else happens; math.inf if time changes
            nothing, and if more may begin now.
        is_paced: Whether messages begin one by one, with pauses.
    """

    room: int
    wait: float
    is_paced: bool


class AdmissionControl(Protocol):
    """Limits how many messages a subscriber begins. Thread-safe: several threads call it.

    The handler counts what has begun and ended. Messages that may not begin yet wait. A subscriber
    that is stopped gives them back.
    """

    def attach(self, changed: Callable[[], None]) -> None:
        """Register *changed*, which is called when more messages may begin than before."""

    def may_begin(self) -> int:
        """Return how many more messages may begin now."""

    def outlook(self) -> Outlook:
        """Return what may be received, and when more may begin."""

    def problem(self) -> str:
        """Return in words what keeps messages from beginning; empty if all is well."""
