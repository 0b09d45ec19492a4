"""The codecs of the failure envelope: how letters encode it, and how it is read. Pure.

Every codec writes this package's own properties, ``FAILURE_…``. *pubsub* and *spring* also write
the properties that readers of these systems look for. Reading needs no codec: each value is looked
up under all its names, and unreadable values count as absent. The payload of a letter is always
that of its message.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire import properties as wire
from pulsar_retry.wire.envelope import Attempt, Envelope, FailureTexts, Redact
from pulsar_retry.wire.names import TopicName, member_of

#: The maximum size of an envelope's properties in bytes, including their names.
MAX_ENVELOPE = 8192

#: The maximum size of each value in bytes, for all its names together. Values are written in this
#: order; the traceback gets the rest of the space.
_ROOM = {
    "reason": 512,
    "stage": 64,
    "error": 256,
    "fingerprint": 64,
    "attempt": 32,
    "when": 32,
    "published": 32,
    "published_offset": 32,
    "published_ms": 32,
    "topic": 512,
    "subscription": 512,
    "project": 512,
    "message": 2048,
    "history": 2048,
    "traceback": MAX_ENVELOPE,
}

#: The maximum bytes of a class or a fingerprint in an entry of the history.
_ENTRY_ROOM = 128

#: More bytes than the number, the times and the history of a first failure have, except the end of
#: the history's entry.
_ATTEMPT_ROOM = 160

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)

_OURS = {
    "reason": (wire.FAILURE_REASON,),
    "stage": (wire.FAILURE_STAGE,),
    "error": (wire.FAILURE_ERROR,),
    "fingerprint": (wire.FAILURE_FINGERPRINT,),
    "attempt": (wire.FAILURE_ATTEMPT,),
    "when": (wire.FAILURE_TIME,),
    "published": (wire.FAILURE_PUBLISH_TIME,),
    "message": (wire.FAILURE_MESSAGE,),
    "history": (wire.FAILURE_HISTORY,),
    "traceback": (wire.FAILURE_TRACEBACK,),
}

#: From Pub/Sub's "Handle message failures": the attributes of a forwarded message.
_PUBSUB = {
    "attempt": ("CloudPubSubDeadLetterSourceDeliveryCount",),
    "subscription": ("CloudPubSubDeadLetterSourceSubscription",),
    "project": ("CloudPubSubDeadLetterSourceSubscriptionProject",),
    "published_offset": ("CloudPubSubDeadLetterSourceTopicPublishTime",),
}

#: The only property of Spring for Apache Pulsar, and the headers of Spring for Apache Kafka.
_SPRING = {
    "error": ("kafka_dlt-exception-fqcn",),
    "message": ("exception-thrown-cause", "kafka_dlt-exception-message"),
    "traceback": ("kafka_dlt-exception-stacktrace",),
    "topic": ("kafka_dlt-original-topic",),
    "subscription": ("kafka_dlt-original-consumer-group",),
    "published_ms": ("kafka_dlt-original-timestamp",),
}

#: Names that are read, but not written. In Pub/Sub only export subscriptions have the error
#: message. Spring's retry topics omit ``dlt-``; the class of a cause says more than its wrapper's.
_READ_ONLY = {
    "topic": (wire.REAL_TOPIC, "kafka_original-topic"),
    "subscription": (wire.REAL_SUBSCRIPTION, "kafka_original-consumer-group"),
    "published_ms": ("kafka_original-timestamp",),
    "attempt": ("retry_topic-attempts", wire.RECONSUMETIMES),
    "error": ("kafka_dlt-exception-cause-fqcn", "kafka_exception-cause-fqcn"),
    "message": ("CloudPubSubDeadLetterSourceDeliveryErrorMessage", "kafka_exception-message"),
    "traceback": ("kafka_exception-stacktrace",),
}


def _names(*tables: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the names of each value, from all *tables* in order."""
    names = {value: sum((each.get(value, ()) for each in tables), ()) for value in _ROOM}
    return {value: each for value, each in names.items() if each}


#: The names that each codec writes. Below: the names that are read; the first one present counts.
_WRITTEN = {
    "pulsar": _names(_OURS),
    "tdmq": _names(_OURS),
    "pubsub": _names(_OURS, _PUBSUB),
    "spring": _names(_OURS, _SPRING),
}
#: The same, as a set, and in order with the sizes of the names.
_NAMES_WRITTEN = {
    codec: frozenset(name for names in values.values() for name in names)
    for codec, values in _WRITTEN.items()
}
_ORDER_WRITTEN = {
    codec: [(value, names, sum(map(len, names))) for value, names in values.items()]
    for codec, values in _WRITTEN.items()
}
_KNOWN = _names(_OURS, _READ_ONLY, _PUBSUB, _SPRING)

#: The codecs that write other systems' names, too.
_FOREIGN = frozenset({"pubsub", "spring"})

#: The values that failures of one kind share.
_SHARED = ("reason", "stage", "error", "fingerprint", "message")

#: The space for all values under this package's own names.
OWN_ROOM = MAX_ENVELOPE - sum(len(name) for names in _OURS.values() for name in names)

#: All names for the time of first publication.
_PUBLISHED = (*_KNOWN["published"], *_KNOWN["published_offset"], *_KNOWN["published_ms"])

#: All properties that are read here; other properties belong to the message itself.
READ = frozenset(name for names in _KNOWN.values() for name in names)

#: Those of them that only a message has that has failed before.
OF_A_FAILURE = READ - {wire.REAL_TOPIC, wire.REAL_SUBSCRIPTION, wire.RECONSUMETIMES}


class Codec(enum.Enum):
    """The systems whose readers understand a letter, in addition to this package."""

    #: Only ``FAILURE_…``.
    PULSAR = "pulsar"
    #: The same as PULSAR: every letter has the properties that TDMQ's readers need.
    TDMQ = "tdmq"
    #: ``CloudPubSubDeadLetterSource…``; the tenant takes the place of the project.
    PUBSUB = "pubsub"
    #: ``exception-thrown-cause`` and ``kafka_dlt-…``, with numbers as text.
    SPRING = "spring"

    @classmethod
    def of(cls, codec: CodecLike) -> Codec:
        """Return the codec; its value and its name are accepted too.

        Raises:
            ConfigError: there is no such codec.
        """
        return member_of(cls, "codec", codec)

    @property
    def is_own(self) -> bool:
        """Whether it writes only this package's own properties, and none about the origin."""
        return self.value not in _FOREIGN

    def strip(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return *properties* without those that `write` writes, so that no old value remains."""
        written = _NAMES_WRITTEN[self.value]
        return {name: text for name, text in properties.items() if name not in written}

    def write(self, envelope: Envelope, *, redact: Redact | None = None) -> dict[str, str]:
        """Return the properties of *envelope*: 8 KiB at most, and valid UTF-8.

        They are added to a letter's other properties, from which `strip` has removed an older
        envelope. Every letter has the origin of its message anyway. The result therefore contains
        the origin only in the form that another system needs.

        Args:
            envelope: The envelope to write.
            redact: A function that is called with the name and the text of the reason, the message
                and the traceback, before they are shortened. It returns the text to publish, or
                None to leave it out.
        """
        if redact is not None:
            envelope = envelope.redacted(redact)
        if self.is_own:
            return _written(envelope)
        properties: dict[str, str] = {}
        room = MAX_ENVELOPE
        for value, names, names_size in _ORDER_WRITTEN[self.value]:
            room -= names_size
            text = _text(envelope, value, min(_ROOM[value], room) // len(names))
            if text is not None:
                for name in names:
                    properties[name] = text
                room -= _size(text) * len(names)
        return properties


#: A codec, its value or its name.
CodecLike = (
    Literal["pulsar", "tdmq", "pubsub", "spring", "PULSAR", "TDMQ", "PUBSUB", "SPRING"] | Codec
)


@lru_cache(64)  # a letter has the same time several times
def _iso(when: datetime | None, utc: str = "Z") -> str | None:
    if when is None:
        return None
    if when.tzinfo is not UTC:
        when = when.astimezone(UTC)
    return when.isoformat(timespec="milliseconds")[: -len("+00:00")] + utc


def _milliseconds(when: datetime | None) -> str | None:
    return None if when is None else str((when - _EPOCH) // timedelta(milliseconds=1))


def _tenant(topic: str | None) -> str | None:
    try:
        return topic and TopicName.parse(topic).tenant
    except ConfigError:
        return None


#: Functions that convert values to text.
_TEXTS: dict[str, Callable[[Envelope], str | None]] = {
    "attempt": lambda it: None if it.attempt is None else str(it.attempt),
    "when": lambda it: _iso(it.when),
    "published": lambda it: _iso(it.published),
    "published_offset": lambda it: _iso(it.published, "+00:00"),
    "published_ms": lambda it: _milliseconds(it.published),
    "project": lambda it: _tenant(it.topic),
}


def _written(envelope: Envelope) -> dict[str, str]:
    """Return the properties of *envelope* under this package's own names only.

    It is what the loop of `Codec.write` makes of one name for each value, in a third of the time.
    Values other than the traceback are so short that one never takes the space of another.
    """
    it = envelope
    properties, room = _said(it.reason, it.stage, it.error, it.fingerprint, it.message)
    properties = properties.copy()
    if it.attempt is not None:
        properties[wire.FAILURE_ATTEMPT] = text = _head(str(it.attempt), _ROOM["attempt"])
        room -= len(text)
    if (when := _iso(it.when)) is not None:
        properties[wire.FAILURE_TIME] = when
        room -= len(when)
    if (published := _iso(it.published)) is not None:
        properties[wire.FAILURE_PUBLISH_TIME] = published
        room -= len(published)
    if it.history:
        properties[wire.FAILURE_HISTORY] = text = _history(it, _ROOM["history"])
        room -= _size(text)
    if it.traceback:
        properties[wire.FAILURE_TRACEBACK] = _tail(it.traceback, room)
    return properties


class FailureKind(NamedTuple):
    """What first failures of one kind share. C++ adds what tells one of them from another.

    Attributes:
        properties: The properties that say what has failed. They must not be changed.
        entry: The end of its entry in the history.
    """

    properties: dict[str, str]
    entry: str


@lru_cache(256)  # most failures of a subscription say one of a few things
def failure_kind(texts: FailureTexts) -> FailureKind | None:
    """Return what `Codec.write` writes of a first failure, except its number and times.

    None if the traceback may have to be cut.
    """
    it = texts
    properties, room = _said(it.reason, it.stage, it.error, it.fingerprint, it.message)
    entry = _kind_json(it.error, it.fingerprint)
    if it.traceback:
        traceback = _tail(it.traceback, room)
        if _size(traceback) + _size(entry) + _ATTEMPT_ROOM > room:
            return None
        properties = {**properties, wire.FAILURE_TRACEBACK: traceback}
    return FailureKind(properties, entry)


@lru_cache(256)  # as above
def _said(*texts: str | None) -> tuple[dict[str, str], int]:
    """Return the properties for what failures of one kind share, and the space that is left."""
    properties = {
        _OURS[value][0]: _head(text, _ROOM[value])
        for value, text in zip(_SHARED, texts, strict=True)
        if text
    }
    return properties, OWN_ROOM - sum(map(_size, properties.values()))


def _text(envelope: Envelope, value: str, size: int) -> str | None:
    """Return *value* as text of at most *size* bytes; None if there is none."""
    if value == "history":
        return _history(envelope, size) if envelope.history else None
    text = _TEXTS[value](envelope) if value in _TEXTS else getattr(envelope, value)
    if not text:
        return None
    return _tail(text, size) if value == "traceback" else _head(text, size)


#: `json.dumps` would make an encoder for each call.
_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _history(envelope: Envelope, size: int) -> str:
    """Return the latest attempts that fit, as a JSON array with the latest one last."""
    kept: list[str] = []
    for each in reversed(envelope.history):
        when = _iso(each.when)
        moment = "null" if when is None else f'"{when}"'
        text = f"[{each.number},{moment},{_kind_json(each.error, each.fingerprint)}]"
        size -= _size(text) + 1
        if size < 1:
            break
        kept.append(text)
    return f"[{','.join(reversed(kept))}]"


@lru_cache(256)
def _kind_json(error: str | None, fingerprint: str | None) -> str:
    """Return the last two values of an entry of the history, as JSON."""
    return ",".join(_as_json(each and _head(each, _ENTRY_ROOM)) for each in (error, fingerprint))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _head(text: str, size: int) -> str:
    if text.isascii():
        return text[:size]
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def _tail(text: str, size: int) -> str:
    """Return the end of the text, which is the most useful part of a traceback."""
    if len(text) <= size and text.isascii():
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return data.decode()
    cut = "…"
    return cut + data[len(data) - size + len(cut.encode()) :].decode("utf-8", "ignore")


# -- reading --------------------------------------------------------------------------------------


def read_envelope(properties: Mapping[str, str]) -> Envelope:
    """Return the envelope that is in *properties*, from any writer. It never raises.

    If there are several counts of attempts, the highest one is used.
    """
    if READ.isdisjoint(properties):  # as usual at the first failure
        return Envelope(message_id=wire.origin_message_id(properties))

    def text(value: str) -> str | None:
        return next((properties[name] for name in _KNOWN[value] if properties.get(name)), None)

    counts = (wire.count_of(properties.get(name)) or 0 for name in _KNOWN["attempt"])
    return Envelope(
        topic=text("topic"),
        subscription=text("subscription"),
        message_id=wire.origin_message_id(properties),
        published=read_published(properties),
        reason=text("reason"),
        stage=text("stage"),
        error=text("error"),
        message=text("message"),
        traceback=text("traceback"),
        fingerprint=text("fingerprint"),
        attempt=max(counts) or None,
        when=_first_time(properties, _KNOWN["when"]),
        history=tuple(_read_history(text("history"))),
    )


def read_published(properties: Mapping[str, str]) -> datetime | None:
    """Return when a message was first published, as `read_envelope` does, but much faster."""
    return _first_time(properties, _PUBLISHED)


def _first_time(properties: Mapping[str, str], names: tuple[str, ...]) -> datetime | None:
    for name in names:
        if name in properties and (when := _time(properties[name])) is not None:
            return when
    return None


def _time(text: str | None) -> datetime | None:
    """Parse ISO 8601 (UTC if there is no zone), or milliseconds since 1970."""
    try:
        if text is None:
            return None
        if _MILLISECONDS.fullmatch(text):
            return _EPOCH + timedelta(milliseconds=int(text))
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _read_history(text: str | None) -> Iterator[Attempt]:
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case [int(number), str() | None as when, str() | None as error, str() | None as place]:
                yield Attempt(int(number), _time(when), error, place)
