"""Hooks: functions of the user that are called when something happens to a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

from pulsar_retry.errors import ConfigError

#: How messages are retried: by a letter, by the broker, or in their lane.
RetryKind = Literal["letter", "nack", "lane"]


@attrs.frozen(kw_only=True)
class SettleEvent:
    """What has happened to a message. It contains no payload and no properties.

    Attributes:
        topic: The full name of the topic that the message was first published to, without its
            partition. If only an id was given to a consumer of several topics, all its topics.
        subscription: The subscription.
        message_id: The id of the delivered message, ``ledger:entry:partition[:batch]``.
        attempt: The number of the attempt, counted from 1.
        kind: How the message is retried: by a ``letter``, a ``nack``, or in its ``lane``. None: the
            event is not a retry.
        delay: Seconds until the retry; None if the event is not a retry.
        reason: Why the message is dead; None for other events.
        error: The exception of the handler, or, in `on_settle_failed`, of the settlement. None if
            there is none, or it is not known.
        letter_topic: The topic of its letter; None if there is no letter.
    """

    topic: str
    subscription: str
    message_id: str
    attempt: int
    kind: RetryKind | None = None
    delay: float | None = None
    reason: str | None = None
    error: BaseException | None = None
    letter_topic: str | None = None


Hook = Callable[[SettleEvent], object]


@attrs.frozen(kw_only=True)
class Hooks:
    """Functions that are called when something happens to a message. They cannot influence it.

    Each function takes one `SettleEvent`. It is called after the event, on the thread that learns
    of it: the caller's, or a thread of pulsar-client or of this package. So it must be quick. It
    must not block, and must not hand messages on. An exception that it raises is logged, once for
    each hook and type of error, and has no other effect.

    Attributes:
        on_retry: A retry letter has its receipt and the original is acknowledged; or a message was
            nacked; or a lane retries a message in place.
        on_dead_letter: A dead letter has its receipt and the original is acknowledged.
        on_settle_failed: A message could not be handed on; it is redelivered.

    Raises:
        ConfigError: a hook cannot be called.
    """

    on_retry: Hook | None = None
    on_dead_letter: Hook | None = None
    on_settle_failed: Hook | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot be called."""
        for name, value in attrs.asdict(self, recurse=False).items():
            if value is not None and not callable(value):
                raise ConfigError.bad(name, value, "a function of one SettleEvent, or None")


def checked_hooks(hooks: Any) -> Hooks | None:
    """Return *hooks* if they are `Hooks` or None.

    Raises:
        ConfigError: the value is neither.
    """
    if hooks is not None and not isinstance(hooks, Hooks):
        raise ConfigError.bad("hooks", hooks, "a pulsar_retry.Hooks or None")
    return hooks
