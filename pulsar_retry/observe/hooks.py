"""Hooks: functions of the user that are called when something happens to a message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.observe.counting import Counters
from pulsar_retry.observe.watch import (
    Events,
    HandOver,
    Instrument,
    RetryKind,
    SettleEvent,
    Watch,
)
from pulsar_retry.policy.outcomes import RETRIES_EXHAUSTED
from pulsar_retry.wire.owner import Recipient

_log = logging.getLogger("pulsar_retry")

#: The maximum number of error types that are logged for the hooks of one consumer.
_MOST_ERRORS = 20

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


class HookCalls(Instrument):
    """Calls the hooks of one consumer. Thread-safe."""

    def __init__(self, hooks: Hooks, events: Events) -> None:
        self._hooks = hooks
        self._events = events
        self._logged: set[tuple[str, type]] = set()

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


def watch_of(counters: Counters, hooks: Hooks | None, recipient: Recipient) -> Watch:
    """Return the watch of a consumer, with its hooks."""
    events = Events(counters.topic, counters.subscription, recipient)
    return Watch(counters, events, () if hooks is None else (HookCalls(hooks, events),))
