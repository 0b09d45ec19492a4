"""The failure envelope: how a letter describes the failure that caused it. Pure.

It is written as properties ``FAILURE_…`` and, if that is wanted, also as the attributes of
Pub/Sub's dead letters. Reading looks up each value under all its names; unreadable values count as
absent. The payload of a letter is always that of its message.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import attrs

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.wire import properties as wire
from pulsar_retry.wire.names import TopicName
from pulsar_retry.wire.stack import (
    fingerprint_of,
    fingerprint_of_reason,
    name_of,
    text_of,
    traceback_of,
)

#: A function of the name of a text (``reason``, ``message`` or ``traceback``) and the text. It
#: returns the text that may leave the process, or None to leave the text out.
Redact = Callable[[str, str], str | None]

_log = logging.getLogger("pulsar_retry")

#: The last millisecond of the year 9999, which is the last one of Python's calendar.
LAST_MOMENT = 253_402_300_799_999

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The maximum characters of an error's text, before it is redacted and shortened.
_MAX_TEXT = 65_536

_REDACTED = ("reason", "message", "traceback")

#: The maximum size of an envelope's properties in bytes, including their names.
MAX_ENVELOPE = 8192

#: The maximum size of a value in bytes. The traceback gets the rest of the space.
_MOST, _MOST_OF_MESSAGE = 512, 2048

_OURS = {
    "reason": wire.FAILURE_REASON,
    "stage": wire.FAILURE_STAGE,
    "error": wire.FAILURE_ERROR,
    "fingerprint": wire.FAILURE_FINGERPRINT,
    "attempt": wire.FAILURE_ATTEMPT,
    "when": wire.FAILURE_TIME,
    "published": wire.FAILURE_PUBLISH_TIME,
    "message": wire.FAILURE_MESSAGE,
    "traceback": wire.FAILURE_TRACEBACK,
}

#: From Pub/Sub's "Handle message failures": the attributes of a forwarded message.
_PUBSUB = {
    "attempt": "CloudPubSubDeadLetterSourceDeliveryCount",
    "subscription": "CloudPubSubDeadLetterSourceSubscription",
    "project": "CloudPubSubDeadLetterSourceSubscriptionProject",
    "published": "CloudPubSubDeadLetterSourceTopicPublishTime",
}
PUBSUB_ATTRIBUTES = frozenset(_PUBSUB.values())

#: All names that are written, without and with Pub/Sub's attributes.
_WRITTEN = frozenset(_OURS.values())
_WRITTEN_FOR_PUBSUB = _WRITTEN | PUBSUB_ATTRIBUTES

#: Names that are read, but not written. In Pub/Sub only export subscriptions have the message.
_READ_ONLY = {
    "topic": wire.REAL_TOPIC,
    "subscription": wire.REAL_SUBSCRIPTION,
    "attempt": wire.RECONSUMETIMES,
    "message": "CloudPubSubDeadLetterSourceDeliveryErrorMessage",
}

#: The names of each value that are read; the first one that is present counts.
_KNOWN = {
    value: [table[value] for table in (_OURS, _READ_ONLY, _PUBSUB) if value in table]
    for value in {**_OURS, **_READ_ONLY, **_PUBSUB}
}

_KNOWN_TEXTS = {
    value: names
    for value, names in _KNOWN.items()
    if value not in {"attempt", "when", "published", "project"}
}

#: The names of the time of the first publication.
PUBLISHED = frozenset(_KNOWN["published"])

#: All properties that are read here; other properties belong to the message itself.
READ = frozenset(name for names in _KNOWN.values() for name in names)


@attrs.frozen(kw_only=True)
class Envelope:
    """The failures of a message, as its letter describes them. Unknown values are None.

    Attributes:
        topic: The topic that the message was first published to, without its partition.
        subscription: The subscription that failed.
        message_id: The id of the first publication, ``ledger:entry:partition[:batch]``.
        published: When the message was first published.
        reason: A short, stable name of the problem. Retry letters have none.
        stage: Where it failed: ``decode``, ``handler`` or a user's own stage.
        error: The class of the error.
        message: The error's text.
        traceback: The error's traceback, including the errors that it was raised from. Retry
            letters have none, because it costs more than everything else.
        fingerprint: The same for errors of one class that were raised in the same place, or have
            the same kind, with any text (`fingerprint_of`). Dead letters are grouped by it.
        attempt: How many attempts have failed.
        when: When the last attempt failed.
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

    @classmethod
    def of(
        cls,
        error: BaseException | None,
        *,
        attempt: int,
        when: datetime,
        published: datetime,
        stage: str = "handler",
        reason: str | None = None,
        topic: str | None = None,
        subscription: str | None = None,
    ) -> Envelope:
        """Return the envelope of a failure. It never raises, even if the error's own methods do.

        Args:
            error: The error (`Failure.cause`); None if an outcome was returned.
            attempt: The number of the failed attempt.
            when: When it failed; with a time zone.
            published: When the message was first published.
            stage: Where it failed.
            reason: Why the message is dead; None if it is retried.
            topic: The topic of the message; only Pub/Sub's attributes say it.
            subscription: The subscription, likewise.
        """
        known = {}
        if error is not None:
            detail = error.detail if isinstance(error, PulsarRetryError) else None
            known = {
                "error": name_of(error),
                "message": "\n".join(filter(None, (text_of(error), detail)))[:_MAX_TEXT],
                "traceback": None if reason is None else traceback_of(error),
                "fingerprint": fingerprint_of(error),
            }
        elif reason is not None:
            known = {"fingerprint": fingerprint_of_reason(reason)}
        return cls(
            topic=topic,
            subscription=subscription,
            published=published,
            reason=reason,
            stage=stage,
            attempt=attempt,
            when=when,
            **known,
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

    def to_properties(
        self, *, pubsub_attributes: bool = False, redact: Redact | None = None
    ) -> dict[str, str]:
        """Return the properties of the envelope: 8 KiB at most, and valid UTF-8.

        They are added to a letter's other properties, from which `without_envelope` has removed an
        older envelope. Every letter has the origin of its message anyway, so the result does not
        contain it.

        Args:
            pubsub_attributes: Whether the attributes of Pub/Sub's dead letters are written, too:
                ``CloudPubSubDeadLetterSource…``. The tenant takes the place of the project.
            redact: A function that is called with the name and the text of the reason, the message
                and the traceback, before they are shortened. It returns the text to publish, or
                None to leave it out.
        """
        it = self if redact is None else self.redacted(redact)
        attempt = None if it.attempt is None else str(it.attempt)
        published = None if it.published is None else iso(it.published)
        texts = {
            wire.FAILURE_REASON: it.reason,
            wire.FAILURE_STAGE: it.stage,
            wire.FAILURE_ERROR: it.error,
            wire.FAILURE_FINGERPRINT: it.fingerprint,
            wire.FAILURE_MESSAGE: it.message,
            wire.FAILURE_ATTEMPT: attempt,
            wire.FAILURE_TIME: None if it.when is None else iso(it.when),
            wire.FAILURE_PUBLISH_TIME: published,
        }
        if pubsub_attributes:
            theirs = {
                "attempt": attempt,
                "subscription": it.subscription,
                "project": _tenant(it.topic),
                "published": (published or "").replace("Z", "+00:00"),
            }
            texts |= {_PUBSUB[value]: text for value, text in theirs.items()}
        properties = {
            name: _head(text, _MOST_OF_MESSAGE if name == wire.FAILURE_MESSAGE else _MOST)
            for name, text in texts.items()
            if text
        }
        if it.traceback:
            others = "".join([wire.FAILURE_TRACEBACK, *properties, *properties.values()])
            properties[wire.FAILURE_TRACEBACK] = _tail(
                it.traceback, MAX_ENVELOPE - len(others.encode())
            )
        return properties


# -- writing --------------------------------------------------------------------------------------


def without_envelope(properties: Mapping[str, str], *, pubsub: bool) -> dict[str, str]:
    """Return *properties* without those that `Envelope.to_properties` may write."""
    left = dict(properties)
    for name in _WRITTEN_FOR_PUBSUB if pubsub else _WRITTEN:
        left.pop(name, None)
    return left


def _tenant(topic: str | None) -> str | None:
    try:
        return topic and TopicName.parse(topic).tenant
    except ConfigError:
        return None


def iso(when: datetime) -> str:
    """Return a time as the properties of letters have it: in UTC, to the millisecond."""
    since = when - _EPOCH
    return f"{_second(since.days, since.seconds)}.{since.microseconds // 1000:03}Z"


@lru_cache(64)  # many letters are made in the same second
def _second(days: int, seconds: int) -> str:
    return (_EPOCH + timedelta(days, seconds)).isoformat()[: -len("+00:00")]


def _head(text: str, size: int) -> str:
    if text.isascii():
        return text[:size]
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def _tail(text: str, size: int) -> str:
    """Return the end of the text, which is the most useful part of a traceback."""
    data = text.encode(errors="replace")
    if len(data) <= size:
        return data.decode()
    cut = "…"
    return cut + data[len(data) - size + len(cut.encode()) :].decode(errors="ignore")


# -- reading --------------------------------------------------------------------------------------


def read_envelope(properties: Mapping[str, str]) -> Envelope:
    """Return the envelope that is in *properties*, from any writer. It never raises.

    If there are several counts of attempts, the highest one is used.
    """
    counts = [wire.count_of(properties.get(name)) or 0 for name in _KNOWN["attempt"]]
    return Envelope(
        message_id=wire.origin_message_id(properties),
        published=read_published(properties),
        attempt=max(counts) or None,
        when=_first_time(properties, _KNOWN["when"]),
        **{
            value: next(filter(None, map(properties.get, names)), None)
            for value, names in _KNOWN_TEXTS.items()
        },
    )


def moment_of(milliseconds: int) -> datetime:
    """Return a time in milliseconds since 1970; if it is after the year 9999, the end of that.

    Some clients write the publish time of their messages in another unit.
    """
    return datetime.fromtimestamp(min(milliseconds, LAST_MOMENT) / 1000, UTC)


def read_published(properties: Mapping[str, str]) -> datetime | None:
    """Return when a message was first published, as `read_envelope` does, but much faster."""
    return _first_time(properties, _KNOWN["published"])


def _first_time(properties: Mapping[str, str], names: list[str]) -> datetime | None:
    """Return the first of the times that is ISO 8601; without a zone it is UTC."""
    for name in names:
        if name in properties:
            with contextlib.suppress(ValueError, OverflowError):
                when = datetime.fromisoformat(properties[name])
                return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    return None
