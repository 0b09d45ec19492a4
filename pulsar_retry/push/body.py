"""The body of a request: Pub/Sub's envelope, or the bare payload. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _encode
from typing import Any

import attrs

from pulsar_retry._version import __version__
from pulsar_retry.runtime.upstream import raw_of
from pulsar_retry.wire.envelope import LAST_MOMENT, PUBSUB_ATTRIBUTES, read_envelope
from pulsar_retry.wire.names import Naming
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import (
    DELAY,
    FAILURE,
    FAILURE_PUBLISH_TIME,
    REDRIVE_COUNT,
    RESERVED_PROPERTIES,
    SYSTEM_PROPERTIES,
    message_id_text,
    origin_message_id,
    reconsume_times,
    redrive_count,
)

#: A message with one of these properties, or with one about a failure, has been a letter.
_MARKS = SYSTEM_PROPERTIES | {REDRIVE_COUNT}
#: The names of properties that only letters have, in every dialect.
OF_LETTERS = RESERVED_PROPERTIES - {DELAY}

#: Characters that a structured field's string cannot contain, or not without an escape.
_NOT_PLAIN = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")
_EPOCH = datetime.fromtimestamp(0, UTC)

Header = tuple[bytes, bytes]
_USER_AGENT = (b"User-Agent", f"pulsar-retry/{__version__}".encode())
#: The headers of a wrapped body and of a bare payload.
JSON_CONTENT = (b"Content-Type", b"application/json")
BYTES_CONTENT = (b"Content-Type", b"application/octet-stream")


@attrs.frozen
class Pushed:
    """A message as receivers see it: the same at each attempt, except for the attempt number.

    Attributes:
        data: The payload; None for a null value.
        attributes: The properties that its producer has set. A dead letter of another subscription
            also has those that name its source, as in Pub/Sub.
        message_id: The id with which it was first published.
        published_ms: When it was first published, in milliseconds since 1970.
        ordering_key: The ordering key, or else the partition key, in hexadecimal if it is not
            UTF-8; empty if it has neither.
        redrives: How often it was brought back from a dead-letter topic.
        attempt: The number of this attempt.
    """

    data: bytes | None
    attributes: Mapping[str, str]
    message_id: str
    published_ms: int
    ordering_key: str = ""
    redrives: int = 0
    attempt: int = 1

    @classmethod
    def of(
        cls, message: Any, recipient: Recipient, of_letters: AbstractSet[str] = OF_LETTERS
    ) -> Pushed:
        """Read a `pulsar.Message`.

        Args:
            message: The message.
            recipient: The subscription that it is delivered to.
            of_letters: The names of properties that only its letters have; see `names_of_letters`.

        Raises:
            UnicodeDecodeError: its properties are not valid UTF-8.
        """
        raw = raw_of(message)  # pulsar-client's wrapper class costs an extra call for each access
        properties = raw.properties()
        pushed = cls(
            None if raw.has_null_value() else raw.data(),
            properties,
            message_id_text(raw.message_id()),
            raw.publish_timestamp(),
            _key_of(raw),
            0,
            1 + raw.redelivery_count(),
        )
        # Most messages are not letters, so the properties of letters need not be read.
        if _MARKS.isdisjoint(properties) and FAILURE not in "\n".join(properties):
            return pushed
        own = recipient.own(properties, raw.topic_name())
        return pushed._as_first_published(own, of_letters)

    def _as_first_published(
        self, properties: Mapping[str, str], of_letters: AbstractSet[str]
    ) -> Pushed:
        """Return the message as it was first published, according to its own *properties*."""
        first = read_envelope(properties).published if FAILURE_PUBLISH_TIME in properties else None
        return attrs.evolve(
            self,
            attributes={
                name: value
                for name, value in properties.items()
                if name not in of_letters and not name.startswith(FAILURE)
            },
            message_id=origin_message_id(properties) or self.message_id,
            published_ms=(
                self.published_ms
                if first is None
                else (first - _EPOCH) // timedelta(milliseconds=1)
            ),
            redrives=redrive_count(properties),
            attempt=self.attempt + reconsume_times(properties),
        )

    @property
    def publish_time(self) -> str:
        """When the message was first published (RFC 3339, UTC, to the millisecond)."""
        seconds, milliseconds = divmod(min(self.published_ms, LAST_MOMENT), 1000)
        return f"{_second(seconds)}.{milliseconds:03d}Z"

    @property
    def key(self) -> str:
        """A key that stays the same at each attempt of the same delivery."""
        return f"{self.message_id}-{self.redrives}" if self.redrives else self.message_id


def _key_of(raw: Any) -> str:
    try:
        key: str = raw.ordering_key() or raw.partition_key()
    except UnicodeDecodeError as error:  # a Java client's ordering keys are bytes
        key = error.object.hex()
    return key


def names_of_letters(naming: Naming, *, pubsub_attributes: bool) -> frozenset[str]:
    """Return the names of properties, without `FAILURE_…`, that only a subscription's letters have.

    Args:
        naming: The dialect. TDMQ's clients write a level as ``DELAY``; elsewhere it is anybody's.
        pubsub_attributes: Whether its letters have Pub/Sub's attributes.
    """
    names = OF_LETTERS | {DELAY} if naming.is_tdmq else OF_LETTERS
    return names | PUBSUB_ATTRIBUTES if pubsub_attributes else names


def subscription_name(topic: object, subscription: str) -> str:
    """Return ``projects/<tenant>/subscriptions/<subscription>``, with the first topic's tenant."""
    first = topic[0] if isinstance(topic, list) else topic
    name = str(first)
    name = name.partition("://")[2] or name
    tenant = name.split("/")[0] if "/" in name else "public"
    return f"projects/{tenant}/subscriptions/{subscription}"


def wrapped(message: Pushed, subscription: str, attempt: int | None) -> bytes:
    """Return the JSON body, with both spellings of names, as Pub/Sub sends it.

    Args:
        message: The message. One with a null value has no ``data``.
        subscription: The subscription's name.
        attempt: The ``deliveryAttempt``; None leaves it out.
    """
    # Built by hand, because most of it needs no escapes: this takes a third of the time of a dict.
    publish_time, message_id = message.publish_time, _encode(message.message_id)
    attributes = [f"{_encode(name)}:{_encode(text)}" for name, text in message.attributes.items()]
    parts = [f'{{"message":{{"attributes":{{{",".join(attributes)}}}']
    if message.data is not None:
        parts.append(f'"data":"{base64.b64encode(message.data).decode("ascii")}"')
    parts.append(f'"messageId":{message_id},"message_id":{message_id}')
    if message.ordering_key:
        parts.append(f'"orderingKey":{_encode(message.ordering_key)}')
    parts.append(f'"publishTime":"{publish_time}","publish_time":"{publish_time}"}}')
    parts.append(f'"subscription":{_encode(subscription)}')
    if attempt is not None:
        parts.append(f'"deliveryAttempt":{attempt}')
    return f"{','.join(parts)}}}".encode("ascii")


@lru_cache(8)  # messages come roughly in the order of their publication
def _second(seconds: int) -> str:
    """Return a second since 1970 in RFC 3339 form in UTC, without the time zone."""
    return (
        (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="seconds").removesuffix("+00:00")
    )


def common_headers(message: Pushed, attempt: int) -> list[Header]:
    """Return the headers of every request: sender, attempt, and a key to detect duplicates."""
    return [
        _USER_AGENT,
        (b"Idempotency-Key", _quoted(message.key)),
        (b"X-Pulsar-Retry-Attempt", str(attempt).encode()),
    ]


def _quoted(text: str) -> bytes:
    """Return *text* as the string of a structured field (RFC 8941), in printable ASCII."""
    plain = _NOT_PLAIN.sub("?", text)
    return b'"' + plain.encode() + b'"'
