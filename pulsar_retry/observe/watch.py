"""Watches a consumer: describes and counts what happens, ends spans, and calls the hooks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pulsar_retry.errors import AcknowledgeError, LetterPublishError, shown
from pulsar_retry.letters.letter import Letter
from pulsar_retry.observe.counting import OTHER, Counters
from pulsar_retry.observe.hooks import Hooks, RetryKind, SettleEvent
from pulsar_retry.policy.outcomes import RETRIES_EXHAUSTED
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import REAL_TOPIC, message_id_text, reconsume_times

_log = logging.getLogger("pulsar_retry")

#: The maximum number of types of errors that are logged for one consumer's hooks and spans.
_MOST_ERRORS = 20

#: The outcomes of deliveries, beside `ACKNOWLEDGED`.
RETRIED, DEAD_LETTERED = "retried", "dead_lettered"
NACKED, DROPPED, SUPERSEDED, STRAY = "nacked", "dropped", "superseded", "stray"
DEFERRED = "deferred"

#: The attribute of a message that has a span: a function of the message and its letter, which
#: returns the letter with what the letter's span needs.
TRACE = "_pulsar_retry_trace"


class HandOver(Protocol):
    """A message and the letter that replaces it."""

    @property
    def raw(self) -> Any:
        """The raw message."""

    @property
    def letter(self) -> Letter:
        """The letter."""


class Watch:
    """Counts what happens to the messages of one consumer, ends its spans, and calls its hooks.

    Any thread calls the methods, after the event. What hooks and the user's part of tracing raise
    is logged, and disturbs nothing. Acknowledgements are so frequent that `Consumer.acknowledge`
    usually only adds one to `Counters.acknowledged`.

    Attributes:
        counters: The counters of its subscription, with the names of its topic and of itself.
    """

    def __init__(self, counters: Counters, recipient: Recipient, hooks: Hooks | None) -> None:
        self.counters = counters
        self._recipient = recipient
        self._count = counters.count
        self._hooks = hooks
        self._logged: set[tuple[str, type]] = set()

    def settled(self, outcome: str) -> None:
        """Count an acknowledgement without a letter.

        *outcome* is `ACKNOWLEDGED`, or says why the message was not handled: `DROPPED`,
        `SUPERSEDED` or `STRAY`.
        """
        self._count("deliveries", outcome)

    def retried(
        self, raw: Any, kind: RetryKind, delay: float, *, counted: bool = True, **known: Any
    ) -> None:
        """Count a retry without a letter: a nack of a raw message or an id, or one in a lane.

        It is not *counted* if the message was only deferred, without a failed attempt. *known* are
        other values of the event.
        """
        if counted:
            self._count("retries", kind)
            self._count("deliveries", NACKED if kind == "nack" else RETRIED)
        else:
            self._count("deliveries", DEFERRED)
        if self._hooks is not None:
            self._call("on_retry", raw, kind=kind, delay=delay, **known)

    def handed_on(self, done: Sequence[HandOver]) -> None:
        """Count messages whose letters are published, and which are acknowledged."""
        retried = deferred = dead = 0
        for each in done:
            if each.letter.dead:
                dead += 1
                self._count("dead_letters", each.letter.reason or RETRIES_EXHAUSTED)
            elif each.letter.counted:
                retried += 1
            else:
                deferred += 1
        if retried:
            self._count("retries", "letter", retried)
        for outcome, times in ((RETRIED, retried), (DEFERRED, deferred), (DEAD_LETTERED, dead)):
            if times:
                self._count("deliveries", outcome, times)
        for each in done:
            if each.letter.trace is not None:
                self._end_span(each)
            if self._hooks is not None:
                self._call_for_letter(each)

    def failed(self, hand_over: HandOver, error: BaseException) -> None:
        """Count a message that could not be handed on."""
        known = isinstance(error, LetterPublishError | AcknowledgeError)
        self._count("settle_failures", type(error).__name__ if known else OTHER)
        if hand_over.letter.trace is not None:
            self._end_span(hand_over, error)
        if self._hooks is not None:
            self._call_for_letter(hand_over, error)

    # -- what is the user's ----------------------------------------------------------------------

    def _end_span(self, hand_over: HandOver, *error: BaseException) -> None:
        end = hand_over.letter.trace
        self._undisturbed("the end of a span", hand_over.raw, end, hand_over, *error)

    def _call_for_letter(self, hand_over: HandOver, failed: BaseException | None = None) -> None:
        """Call the hook for the end of a hand-off; *failed* is why it has failed."""
        letter = hand_over.letter
        known: dict[str, Any] = {
            "attempt": letter.attempt,
            "error": letter.error if failed is None else failed,
            "letter_topic": letter.topic,
        }
        if failed is not None:
            self._call("on_settle_failed", hand_over.raw, reason=letter.reason, **known)
        elif letter.dead:
            reason = letter.reason or RETRIES_EXHAUSTED
            self._call("on_dead_letter", hand_over.raw, reason=reason, **known)
        else:
            self._call("on_retry", hand_over.raw, kind="letter", delay=letter.delay, **known)

    def _call(self, name: str, raw: Any, **known: Any) -> None:
        """Call a hook, if there is one of this name."""
        if (hook := getattr(self._hooks, name, None)) is not None:
            self._undisturbed(f"the hook {name}", raw, lambda: hook(self._event(raw, **known)))

    def _undisturbed(self, what: str, raw: Any, call: Callable[..., object], *given: Any) -> None:
        """Call what must not disturb the consumer; log each type of error once."""
        try:
            call(*given)
        except KeyboardInterrupt:
            raise  # the call has not caused it
        except BaseException as error:  # noqa: BLE001 - it is the user's own code that fails
            key = (what, type(error))
            if key not in self._logged and len(self._logged) < _MOST_ERRORS:
                self._logged.add(key)
                text = "%s raised an exception; others of this type are not logged"
                _log.exception(text, what, extra=self.log_values(raw))

    # -- descriptions of messages ----------------------------------------------------------------

    def log_values(self, raw: Any, **known: Any) -> dict[str, Any]:
        """Return the extra values of a log record about a message or an id. Never raises.

        *known* are other values of the event.
        """
        values = {"topic": self.counters.topic, "subscription": self.counters.subscription}
        try:
            event = self._event(raw, **known)
        except Exception as error:  # noqa: BLE001 - the record itself is what matters
            return {**values, "message_id": None, "attempt": None, "reason": shown(error)}
        more = {name: getattr(event, name) for name in ("message_id", "attempt", "reason")}
        return {**values, "topic": event.topic, **more}

    def _event(self, raw: Any, *, attempt: int | None = None, **known: Any) -> SettleEvent:
        """Return the event for a message, or for the id of a message.

        If *attempt* is None, it is read from the message; that of an id is 1.
        """
        topic, message_id = self.counters.topic, raw
        if hasattr(raw, "redelivery_count"):  # otherwise it is an id
            own: Mapping[str, str] = {}
            with contextlib.suppress(UnicodeDecodeError):  # then it is no letter of this package
                own = self._recipient.own(raw.properties(), raw.topic_name())
            topic = str(own.get(REAL_TOPIC) or logical(raw.topic_name()))
            message_id = raw.message_id()
            if attempt is None:
                attempt = int(1 + reconsume_times(own) + raw.redelivery_count())
        return SettleEvent(
            topic=topic,
            subscription=self.counters.subscription,
            message_id=message_id_text(message_id),
            attempt=1 if attempt is None else attempt,
            **known,
        )
