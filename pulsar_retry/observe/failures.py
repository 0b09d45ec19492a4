"""The log of failed messages: one line for many similar failures, without payloads."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from pulsar_retry.errors import shown
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.outcomes import Action, DeadLetter, Failure, RetryLater
from pulsar_retry.wire.stack import fingerprint_of, formatted, name_of, place_text, text_of

_log = logging.getLogger("pulsar_retry")

#: Seconds between two lines of one kind of failure.
EVERY = 60.0

#: The maximum number of kinds that are remembered: the latest ones.
_MOST_KINDS = 200

#: The maximum number of characters of an error's text in a line.
_MOST_TEXT = 500


class Turn(NamedTuple):
    """The permission to log something.

    Attributes:
        is_first: Whether nothing of its kind was logged before.
        held_back: How many of its kind were held back since the last one was logged.
    """

    is_first: bool
    held_back: int

    def __str__(self) -> str:
        return f"; {self.held_back} more like it since the last such line" if self.held_back else ""


class LogLimiter:
    """Permits one line of each kind every `EVERY` seconds, and counts the others. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: When a line of each kind is permitted again, and how many were held back.
        self._kinds: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def turn(self, kind: Hashable) -> Turn | None:
        """Return the permission to log this *kind*; None: the line is held back and counted."""
        now = self._now()
        with self._lock:
            is_first = kind not in self._kinds
            next_at, held_back = self._kinds.get(kind, (now, 0))
            if now < next_at:
                self._kinds[kind] = next_at, held_back + 1
                return None
            self._kinds[kind] = now + EVERY, 0
            self._kinds.move_to_end(kind)
            if len(self._kinds) > _MOST_KINDS:
                self._kinds.popitem(last=False)
        return Turn(is_first, held_back)

    def warn(self, text: str) -> None:
        """Log a problem as a WARNING, if it is permitted; a problem is a kind of its own."""
        if (turn := self.turn(text)) is not None:
            _log.warning("%s%s", text, turn)


_troubles = LogLimiter()


def log_trouble(what: str, trouble: Exception) -> None:
    """Log what the user's part of tracing raised: a message must not fail because of it."""
    if (turn := _troubles.turn((what, type(trouble).__name__))) is not None:
        _log.warning("%s raised an exception%s", what, turn, exc_info=trouble)


class FailureLog:
    """Logs the failures of one subscription's messages. Thread-safe.

    A retry is logged as a WARNING. A dead letter is an ERROR, with the traceback the first time.
    Failures with the same fingerprint (`fingerprint_of`) share one line every `EVERY` seconds, and
    so do messages that could not be settled because of errors of one type. The line says how many
    were held back; those are logged at DEBUG. An outcome that a handler has chosen, such as
    ``raise Retry(60)``, is only logged at DEBUG, unless the message is dead-lettered.
    """

    def __init__(self, watch: Watch, now: Callable[[], float] = time.monotonic) -> None:
        self._watch = watch
        self._limiter = LogLimiter(now=now)

    def failed(self, message: Any, action: Action, failure: Failure, attempt: int) -> None:
        """Log the action for a message whose *attempt* has failed. Never raises."""
        cause = failure.cause
        reason = getattr(action, "reason", None)
        level = _level(action, cause)
        error = failure.error if cause is None else cause
        turn = self._limiter.turn((level, reason, fingerprint_of(error)))
        if turn is None:
            level, turn = logging.DEBUG, Turn(is_first=False, held_back=0)
        if not _log.isEnabledFor(level):
            return
        watch, place = self._watch, place_text(error)
        has_traceback = cause is not None and place and (turn.is_first or level == logging.DEBUG)
        _log.log(
            level,
            "a message failed and %s (%s, subscription %r, attempt %d): %s%s%s",
            _what(action),
            watch.counters.topic,
            watch.counters.subscription,
            attempt,
            _text(error),
            f" ({place})" if place else "",
            turn,
            exc_info=_loggable(error) if has_traceback and level != logging.WARNING else None,
            extra=watch.log_values(message, attempt=attempt, reason=reason),
        )

    def not_settled(self, message: Any, error: BaseException, then: str) -> None:
        """Log that *message*, perhaps raw, could not be settled; *then* says what will follow."""
        turn = self._limiter.turn((then, type(error)))
        level = logging.DEBUG if turn is None else logging.WARNING
        text = "a message was not settled and will be %s: %s%s"
        values = self._watch.log_values(message)
        _log.log(level, text, then, shown(error), turn or "", extra=values)


def _level(action: Action, cause: BaseException | None) -> int:
    if isinstance(action, DeadLetter):
        return logging.ERROR
    if cause is None:
        return logging.DEBUG
    return logging.WARNING if isinstance(action, RetryLater) else logging.INFO


def _what(action: Action) -> str:
    match action:
        case DeadLetter(reason=reason):
            return f"is dead-lettered ({reason})"
        case RetryLater(delay=delay):
            return f"is retried in {delay:g} s"
    return f"is settled by {action!r}"


def _loggable(error: BaseException) -> BaseException | None:
    """Return *error*; None if its traceback cannot be formatted."""
    try:
        formatted(error)
    except Exception:  # noqa: BLE001 - it is the error's own code that fails
        return None
    return error


def _text(error: BaseException) -> str:
    text = " ".join(text_of(error)[:_MOST_TEXT].split())
    return f"{name_of(error)}: {text}" if text else name_of(error)
