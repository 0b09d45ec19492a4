"""The one seam for everything that watches a consumer: an instrument is notified of each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pulsar_retry.letters.letter import Letter

#: The outcomes of deliveries.
ACKNOWLEDGED, RETRIED, DEAD_LETTERED = "acknowledged", "retried", "dead_lettered"
NACKED, DROPPED, SUPERSEDED, STRAY = "nacked", "dropped", "superseded", "stray"
DEFERRED = "deferred"

#: How messages are retried: by a letter, by the broker, or in their lane.
RetryKind = Literal["letter", "nack", "lane"]

#: The attribute of a message with the context of the span of its present attempt.
ATTEMPT = "_pulsar_retry_span"


class HandOver(Protocol):
    """A message and the letter that replaces it."""

    @property
    def raw(self) -> Any:
        """The raw message."""

    @property
    def letter(self) -> Letter:
        """The letter."""


class Instrument:
    """Is notified of what happens to the messages of one consumer. Here, each method does nothing.

    Any thread calls the methods, after the event. They must neither block nor raise.
    """

    def settled(self, raw: Any, outcome: str) -> None:
        """Handle an acknowledgement without a letter, of a raw message or of its id.

        *outcome* is `ACKNOWLEDGED`, or says why the message was not handled: `DROPPED`,
        `SUPERSEDED` or `STRAY`.
        """

    def retried(
        self,
        raw: Any,
        kind: RetryKind,
        delay: float,
        *,
        error: BaseException | None = None,
        attempt: int | None = None,
        counted: bool = True,
    ) -> None:
        """Handle a retry without a letter: a nack of a raw message or an id, or one in a lane.

        It is not *counted* if the message was only deferred, without a failed attempt.
        """

    def handed_on(self, done: Sequence[HandOver]) -> None:
        """Handle messages whose letters are published, and which are acknowledged."""

    def failed(self, hand_over: HandOver, error: BaseException) -> None:
        """Handle a message that could not be handed on."""
