"""The failure envelope: how a letter describes the failure that caused it. Pure.

A codec writes it (`pulsar_retry.wire.codecs`), and applies all size limits.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

import attrs

from pulsar_retry.errors import PulsarRetryError, shown
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import Origin
from pulsar_retry.wire.stack import formatted, place_of

#: A function of the name of a text (``reason``, ``message`` or ``traceback``) and the text. It
#: returns the text that may leave the process, or None to leave the text out.
Redact = Callable[[str, str], str | None]

_log = logging.getLogger("pulsar_retry")

#: How many attempts a message's history keeps: the latest ones.
_MAX_HISTORY = 50
#: The maximum characters of a text, before it is redacted and shortened.
_MAX_TEXT = 65_536

_REDACTED = ("reason", "message", "traceback")


@attrs.frozen
class Attempt:
    """One failed attempt.

    Attributes:
        number: Its number; the first delivery is 1.
        when: When it failed; None if a letter does not have this.
        error: The class of the error; None if there was no error.
        fingerprint: The same for errors of one kind (`fingerprint_of`).
    """

    number: int
    when: datetime | None
    error: str | None
    fingerprint: str | None


class FailureTexts(NamedTuple):
    """What says how a message has failed, apart from the times and numbers; see `Envelope`."""

    reason: str | None
    stage: str
    error: str | None
    fingerprint: str | None
    message: str | None
    traceback: str | None


@attrs.frozen(kw_only=True)
class Envelope:
    """The failures of a message, as its letter describes them. Unknown values are None.

    Attributes:
        topic: The topic that the message was first published to, without its partition.
        subscription: The subscription that failed.
        message_id: The id of the first publication, ``ledger:entry:partition[:batch]``.
        published: When the message was first published.
        reason: A short, stable name of the problem. Retry letters have none.
        stage: Where it failed: ``decode``, ``handler``, ``settle``, ``push`` or a user's own stage.
        error: The class of the error.
        message: The error's text.
        traceback: The error's traceback, including the errors that it was raised from. Retry
            letters have none, because it costs more than everything else.
        fingerprint: The same for errors of one class that were raised in the same place, or have
            the same kind, with any text (`fingerprint_of`). Dead letters are grouped by it.
        attempt: How many attempts have failed.
        when: When the last attempt failed.
        history: The failed attempts, at most the latest 50, with the latest one last.
    """

    topic: str | None = None
    subscription: str | None = None
    message_id: str | None = None
    published: datetime | None = None
    reason: str | None = None
    stage: str | None = None
    error: str | None = None
    message: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None
    attempt: int | None = None
    when: datetime | None = None
    history: tuple[Attempt, ...] = ()

    def after(
        self,
        error: BaseException | None,
        *,
        attempt: int,
        when: datetime,
        origin: Origin | None,
        published: datetime | None = None,
        stage: str = "handler",
        reason: str | None = None,
    ) -> Envelope:
        """Return the envelope after one more failure.

        The origin and the time of publication keep their first values. All other values describe
        the last failure. The method never raises, even if the error's own methods do.

        Args:
            error: The error (`Failure.cause`); None if an outcome was returned.
            attempt: The number of the failed attempt.
            when: When it failed; with a time zone.
            origin: Where the message was delivered from; None: it is not needed.
            published: When this message was published.
            stage: Where it failed.
            reason: Why the message is dead; None if it is retried.
        """
        texts = texts_of(error, stage=stage, reason=reason)
        return self.after_texts(texts, attempt, when, origin=origin, published=published)

    def after_texts(
        self,
        texts: FailureTexts,
        attempt: int,
        when: datetime,
        *,
        origin: Origin | None,
        published: datetime | None,
    ) -> Envelope:
        """Do what `after` does, with the texts of the failure."""
        topic, subscription, message_id = self.topic, self.subscription, self.message_id
        if origin is not None:
            topic = topic or logical(origin.topic)
            subscription = subscription or origin.subscription
            message_id = message_id or origin.message_id
        return Envelope(
            topic=topic,
            subscription=subscription,
            message_id=message_id,
            published=self.published or published,
            reason=texts.reason,
            stage=texts.stage,
            error=texts.error,
            message=texts.message,
            traceback=texts.traceback,
            fingerprint=texts.fingerprint,
            attempt=attempt,
            when=when,
            history=(*self.history, Attempt(attempt, when, texts.error, texts.fingerprint))[
                -_MAX_HISTORY:
            ],
        )

    def redacted(self, redact: Redact) -> Envelope:
        """Return the envelope with redacted texts; a text is left out if *redact* fails on it."""
        texts: dict[str, str | None] = {}
        for name in _REDACTED:
            text = getattr(self, name)
            try:
                left = None if text is None else redact(name, text)
            except Exception:  # noqa: BLE001 - it is the user's own code that fails
                _log.exception("redacting the %s of a failure failed; the text is left out", name)
                left = None
            texts[name] = left if isinstance(left, str) else None
        return attrs.evolve(self, **texts)  # type: ignore[arg-type]  # all of them are texts


#: The envelope of a message that has not failed yet.
EMPTY = Envelope()


def texts_of(error: BaseException | None, *, stage: str, reason: str | None) -> FailureTexts:
    """Return the texts of a failure; the arguments are those of `Envelope.after`."""
    fingerprint = fingerprint_of(error, reason)
    if error is None:
        return FailureTexts(reason, stage, None, fingerprint, None, None)
    return FailureTexts(
        reason,
        stage,
        type(error).__qualname__,
        fingerprint,
        _message(error)[:_MAX_TEXT],
        None if reason is None else _traceback(error),
    )


def _message(error: BaseException) -> str:
    detail = error.detail if isinstance(error, PulsarRetryError) else None
    return f"{shown(error)}\n{detail}" if detail else shown(error)


def _traceback(error: BaseException) -> str | None:
    if _kind(error) is not None:
        return None
    try:
        return formatted(error)[-_MAX_TEXT:]
    except Exception:  # noqa: BLE001 - it is the error's own code that fails
        return None


def fingerprint_of(error: BaseException | None, reason: str | None) -> str | None:
    """Return a hash of an error's origin: its class and functions, without line numbers.

    The hash stays the same over releases that do not change these functions, and reveals no data.
    For an error with a kind (`PulsarRetryError`) it is a hash of the class and the kind.
    """
    if error is None:
        return None if reason is None else _hash(reason)
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    if (kind := _kind(error)) is not None:
        return _hash(name, kind)
    return _hash(name, *place_of(error.__traceback__).functions)


def _kind(error: BaseException) -> str | None:
    return error.kind if isinstance(error, PulsarRetryError) else None


@lru_cache(256)
def _hash(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()
