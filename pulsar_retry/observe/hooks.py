"""Hooks: functions of the user that are called when something happens to a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

from pulsar_retry.errors import ConfigError


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
    kind: Literal["letter", "nack", "lane"] | None = None
    delay: float | None = None
    reason: str | None = None
    error: BaseException | None = None
    letter_topic: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return the values of the event that go into a log record."""
        return {
            "topic": self.topic,
            "subscription": self.subscription,
            "message_id": self.message_id,
            "attempt": self.attempt,
            "reason": self.reason,
        }


Hook = Callable[[SettleEvent], object]


def _hook(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not callable(value):
        raise ConfigError.bad(attribute.name, value, "a function of one SettleEvent, or None")


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
        on_recovered: A message was acknowledged that was delivered before: it had failed, or the
            consumer that had it is gone. With this hook every acknowledgement is examined.
        on_settle_failed: A message could not be handed on; it is redelivered.

    Raises:
        ConfigError: a hook cannot be called.
    """

    on_retry: Hook | None = attrs.field(default=None, validator=_hook)
    on_dead_letter: Hook | None = attrs.field(default=None, validator=_hook)
    on_recovered: Hook | None = attrs.field(default=None, validator=_hook)
    on_settle_failed: Hook | None = attrs.field(default=None, validator=_hook)


NONE = Hooks()


def checked_hooks(hooks: Any) -> Hooks | None:
    """Return *hooks* if they are `Hooks` or None.

    Raises:
        ConfigError: the value is neither.
    """
    if hooks is not None and not isinstance(hooks, Hooks):
        raise ConfigError.bad("hooks", hooks, "a pulsar_retry.Hooks or None")
    return hooks
