"""What users want to be told, and what they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

from pulsar_retry.errors import ConfigError


@attrs.frozen(kw_only=True)
class SettleEvent:
    """What has become of a message. It holds no payload and no properties.

    Attributes:
        topic: The topic that the message was first published to, in full, without its partition;
            of a consumer of several, where only an id was given, all of them.
        subscription: The subscription.
        message_id: The id that it was delivered with, ``ledger:entry:partition[:batch]``.
        attempt: Which attempt it was, counted from 1.
        kind: How it comes back: by a ``letter``, a ``nack``, or in its ``lane``; None: it does not,
            or nothing was to be handed on.
        delay: Seconds until it comes back; None as for *kind*.
        reason: Why it is dead; None elsewhere.
        error: What was raised, by the handler or, in `on_settle_failed`, by the settlement; None:
            nothing, or it is not known.
        letter_topic: Where its letter went; None: there is none.
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
        """Return what of it goes into a log record."""
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
    """Functions that are told what becomes of messages. They only watch.

    Each takes one `SettleEvent`. It is called after the fact, on the thread that learns of it: the
    caller's, or one of pulsar-client's or ours. So it must be quick, and neither block nor hand
    messages on itself. What it raises is logged, once for each hook and kind of error, and nothing
    else comes of it.

    Attributes:
        on_retry: A retry letter has its receipt and the original is acknowledged; or a negative
            acknowledgement was taken; or a lane retries in place.
        on_dead_letter: A dead letter has its receipt and the original is acknowledged.
        on_recovered: A message was acknowledged that was delivered before: it had failed, or the
            consumer that had it is gone. With this hook every acknowledgement is looked at.
        on_settle_failed: A message could not be handed on; it is redelivered.

    Raises:
        ConfigError: one of them cannot be called.
    """

    on_retry: Hook | None = attrs.field(default=None, validator=_hook)
    on_dead_letter: Hook | None = attrs.field(default=None, validator=_hook)
    on_recovered: Hook | None = attrs.field(default=None, validator=_hook)
    on_settle_failed: Hook | None = attrs.field(default=None, validator=_hook)


NONE = Hooks()


def checked_hooks(hooks: Any) -> Hooks | None:
    """Return *hooks*.

    Raises:
        ConfigError: they are none.
    """
    if hooks is not None and not isinstance(hooks, Hooks):
        raise ConfigError.bad("hooks", hooks, "a pulsar_retry.Hooks or None")
    return hooks
