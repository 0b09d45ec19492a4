"""Hooks: functions of the user that are called when something happens to a message."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError, shown
from pulsar_retry.observe.instruments import ACKNOWLEDGED, HandOver, Instrument, RetryKind
from pulsar_retry.policy.outcomes import RETRIES_EXHAUSTED
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import REAL_TOPIC, message_id_text, reconsume_times

_log = logging.getLogger("pulsar_retry")

#: The maximum number of error types that are logged for the hooks of one consumer.
_MOST_ERRORS = 20


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


def checked_hooks(hooks: Any) -> Hooks | None:
    """Return *hooks* if they are `Hooks` or None.

    Raises:
        ConfigError: the value is neither.
    """
    if hooks is not None and not isinstance(hooks, Hooks):
        raise ConfigError.bad("hooks", hooks, "a pulsar_retry.Hooks or None")
    return hooks


class Events:
    """Describes the messages of one consumer, for hooks and for the log. Thread-safe.

    Attributes:
        topic: The topic or topics of the consumer, as metrics name them.
        subscription: The subscription.
    """

    def __init__(self, topic: str, subscription: str, recipient: Recipient) -> None:
        self.topic = topic
        self.subscription = subscription
        self._recipient = recipient

    def of(self, raw: Any, *, attempt: int | None = None, **known: Any) -> SettleEvent:
        """Return the event for a message, or for the id of a message.

        Args:
            raw: The message, pulsar-client's raw one, or its id.
            attempt: The number of the attempt; None: it is read from the message.
            known: Other values of the event.
        """
        topic, message_id = self.topic, raw
        if _is_whole(raw):
            topic = str(self._own(raw).get(REAL_TOPIC) or logical(raw.topic_name()))
            message_id = raw.message_id()
        return SettleEvent(
            topic=topic,
            subscription=self.subscription,
            message_id=message_id_text(message_id),
            attempt=self.attempt(raw) if attempt is None else attempt,
            **known,
        )

    def attempt(self, raw: Any) -> int:
        """Return the number of a message's attempt; 1 for an id."""
        if not _is_whole(raw):
            return 1
        return int(1 + reconsume_times(self._own(raw)) + raw.redelivery_count())

    def log_values(self, raw: Any, **known: Any) -> dict[str, Any]:
        """Return the extra values of a log record about a message. Never raises."""
        values = {"topic": self.topic, "subscription": self.subscription}
        try:
            event = self.of(raw, **known)
        except Exception as error:  # noqa: BLE001 - the record itself is what matters
            return {**values, "message_id": None, "attempt": None, "reason": shown(error)}
        more = {name: getattr(event, name) for name in ("message_id", "attempt", "reason")}
        return {**values, "topic": event.topic, **more}

    def _own(self, raw: Any) -> Mapping[str, str]:
        """Return the properties of a raw message that are its own; none if they are not text."""
        with contextlib.suppress(UnicodeDecodeError):  # then it is no letter of this package
            return self._recipient.own(raw.properties(), raw.topic_name())
        return {}


class HookCalls(Instrument):
    """Calls the hooks of one consumer. Thread-safe."""

    def __init__(self, hooks: Hooks, events: Events) -> None:
        self._hooks = hooks
        self._events = events
        self._logged: set[tuple[str, type]] = set()

    def settled(self, raw: Any, outcome: str) -> None:
        """Call `on_recovered` if a message has succeeded that was delivered before."""
        if self._hooks.on_recovered is not None and outcome == ACKNOWLEDGED:
            attempt = self._events.attempt(raw)
            if attempt > 1:
                self._call("on_recovered", raw, attempt=attempt)

    def retried(
        self,
        raw: Any,
        kind: RetryKind,
        delay: float,
        *,
        counted: bool = True,  # noqa: ARG002 - the hook is called for deferred messages too
        **known: Any,
    ) -> None:
        """Call `on_retry`."""
        self._call("on_retry", raw, kind=kind, delay=delay, **known)

    def handed_on(self, done: Sequence[HandOver]) -> None:
        """Call `on_retry` or `on_dead_letter` for each message."""
        for each in done:
            letter = each.letter
            if letter.dead:
                reason = letter.reason or RETRIES_EXHAUSTED
                self._call_with_letter("on_dead_letter", each, letter.error, reason=reason)
            else:
                known = {"kind": "letter", "delay": letter.delay}
                self._call_with_letter("on_retry", each, letter.error, **known)

    def failed(self, hand_over: HandOver, error: BaseException) -> None:
        """Call `on_settle_failed`."""
        reason = hand_over.letter.reason
        self._call_with_letter("on_settle_failed", hand_over, error, reason=reason)

    def _call_with_letter(
        self, name: str, hand_over: HandOver, error: BaseException | None, **known: Any
    ) -> None:
        letter = hand_over.letter
        known |= {"attempt": letter.attempt, "error": error, "letter_topic": letter.topic}
        self._call(name, hand_over.raw, **known)

    def _call(self, name: str, raw: Any, **known: Any) -> None:
        hook = getattr(self._hooks, name)
        if hook is None:
            return
        try:
            hook(self._events.of(raw, **known))
        except KeyboardInterrupt:
            raise  # the hook has not caused it
        except BaseException as error:  # noqa: BLE001 - a hook must not disturb the consumer
            key = (name, type(error))
            if key not in self._logged and len(self._logged) < _MOST_ERRORS:
                self._logged.add(key)
                text = "the hook %s raised an exception; others of this type are not logged"
                _log.exception(text, name, extra=self._events.log_values(raw))


def _is_whole(raw: Any) -> bool:
    """Tell whether it is a message and not an id."""
    return hasattr(raw, "redelivery_count")
