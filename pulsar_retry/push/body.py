"""What is posted: Pub/Sub's envelope, or the bare payload with headers. Pure."""

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
from pulsar_retry.runtime.raw import raw_of
from pulsar_retry.wire.codecs import Codec, read_envelope
from pulsar_retry.wire.properties import (
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

#: By one of these, or by what has failed, a message says that it has been a letter.
_OF_LETTERS = SYSTEM_PROPERTIES | {REDRIVE_COUNT}

#: Pub/Sub's bounds of attributes, which keep headers within what servers take.
_MOST_ATTRIBUTES, _LONGEST_NAME, _LONGEST_VALUE = 100, 256, 1024

#: RFC 9110, 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: RFC 9110, 5.5: no control character, and no blank at either end.
_VALUE = re.compile(r"(?![ \t])[^\x00-\x08\x0a-\x1f\x7f]*(?<![ \t])")
#: Headers that are the request's own, or that others on the way act upon.
_FORBIDDEN = frozenset(
    {
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "http2-settings",
        "idempotency-key",
        "keep-alive",
        "proxy",  # CGI makes it HTTP_PROXY, which libraries take for a setting
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "via",
        "x-http-method-override",
        "x-method-override",
        "x-original-url",
        "x-real-ip",
        "x-rewrite-url",
        "x-serverless-authorization",
    }
)
_FORBIDDEN_STARTS = (
    "proxy-",
    "sec-",
    "webhook-",
    "x-forwarded-",
    "x-goog-",
    "x-pulsar-attribute-",
    "x-pulsar-retry-",
)
#: What the names of attributes begin with as headers, but for those that the user has named.
ATTRIBUTE_PREFIX = "X-Pulsar-Attribute-"
#: What receivers take for a hyphen: CGI and WSGI ``_``, lighttpd's CGI all of these.
_LIKE_A_HYPHEN = re.compile(r"[^0-9a-z]")

#: What a structured field's string cannot hold, or not as it is.
_NOT_PLAIN = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")
_EPOCH = datetime.fromtimestamp(0, UTC)

Header = tuple[bytes, bytes]
_USER_AGENT = (b"User-Agent", f"pulsar-retry/{__version__}".encode())
_WRAPPED = (b"Content-Type", b"application/json")


@attrs.frozen
class Pushed:
    """A message as a receiver is told of it: the same at each attempt, but for the attempt.

    Attributes:
        data: The payload; None for a null value.
        attributes: The properties that its producer gave it; of another subscription's dead letter
            also those that name its source as Pub/Sub or Spring does.
        message_id: The id it was first published with.
        published_ms: When it was first published, in milliseconds since 1970.
        ordering_key: The ordering key, else the partition key; empty for none.
        redrives: How often it was brought back from a dead-letter topic.
        attempt: Which attempt this is (`pulsar_retry.attempt_of`).
    """

    data: bytes | None
    attributes: Mapping[str, str]
    message_id: str
    published_ms: int
    ordering_key: str = ""
    redrives: int = 0
    attempt: int = 1

    @classmethod
    def of(cls, message: Any, codec: Codec = Codec.PULSAR) -> Pushed:
        """Read a `pulsar.Message`.

        Args:
            message: The message.
            codec: What the subscription's own letters are written with.

        Raises:
            UnicodeDecodeError: its properties are no UTF-8.
        """
        raw = raw_of(message)  # pulsar-client's class around it costs a call for each question
        properties = raw.properties()
        pushed = cls(
            None if raw.has_null_value() else raw.data(),
            properties,
            message_id_text(raw.message_id()),
            raw.publish_timestamp(),
            raw.ordering_key() or raw.partition_key(),
            0,
            1 + raw.redelivery_count(),
        )
        # Most messages are no letters, and need not be asked for each thing that letters say.
        if _OF_LETTERS.isdisjoint(properties) and FAILURE not in "\n".join(properties):
            return pushed
        return pushed._as_first_published(properties, codec)

    def _as_first_published(self, properties: Mapping[str, str], codec: Codec) -> Pushed:
        """Return it as its letters' *properties* say that it was."""
        first = read_envelope(properties).published if FAILURE_PUBLISH_TIME in properties else None
        return attrs.evolve(
            self,
            attributes={
                name: value
                for name, value in codec.strip(properties).items()
                if name not in RESERVED_PROPERTIES and not name.startswith(FAILURE)
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
        """When it was first published (RFC 3339, UTC, to the millisecond)."""
        seconds, milliseconds = divmod(self.published_ms, 1000)
        return f"{_second(seconds)}.{milliseconds:03d}Z"

    @property
    def key(self) -> str:
        """What stays the same when the same delivery is attempted again."""
        return f"{self.message_id}-{self.redrives}" if self.redrives else self.message_id


def subscription_name(topic: object, subscription: str) -> str:
    """Return ``projects/<tenant>/subscriptions/<subscription>``, by the first topic's tenant."""
    first = topic[0] if isinstance(topic, list) else topic
    name = str(first)
    name = name.partition("://")[2] or name
    tenant = name.split("/")[0] if "/" in name else "public"
    return f"projects/{tenant}/subscriptions/{subscription}"


def wrapped(message: Pushed, subscription: str, attempt: int | None) -> bytes:
    """Return the JSON body: both spellings, as Pub/Sub sends them.

    Args:
        message: The message. One with a null value has no ``data``.
        subscription: The subscription's name.
        attempt: The ``deliveryAttempt``; None: it is not sent.
    """
    # Written out, for most of it needs no escapes: a third of what a dict costs, for each message.
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


@lru_cache(8)  # messages come in the order of their publication, more or less
def _second(seconds: int) -> str:
    """Return a second since 1970 as RFC 3339 writes it in UTC, without its zone."""
    return (
        (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="seconds").removesuffix("+00:00")
    )


def common_headers(message: Pushed, attempt: int) -> list[Header]:
    """Return the headers of either mode: who posts, which attempt, and a key to tell duplicates."""
    return [
        _USER_AGENT,
        (b"Idempotency-Key", _quoted(message.key)),
        (b"X-Pulsar-Retry-Attempt", str(attempt).encode()),
    ]


def wrapped_headers() -> list[Header]:
    """Return the headers of a wrapped body."""
    return [_WRAPPED]


def unwrapped_headers(
    message: Pushed,
    subscription: str,
    *,
    write_metadata: bool,
    attribute_headers: AbstractSet[str] = frozenset(),
) -> tuple[list[Header], list[str]]:
    """Return the headers of a bare payload, and the names of attributes that cannot be headers.

    Attributes are chosen by producers, and receivers, proxies and frameworks act upon many headers.
    So an attribute is sent with a prefix, ``X-Pulsar-Attribute-…``, unless its name is one of
    *attribute_headers*. One that cannot be a header, by its name or by a control character in its
    value, is left out; so is what is beyond 100 attributes, names of 256 and values of 1024 bytes.
    Nothing is changed to fit.

    Args:
        message: The message.
        subscription: The subscription's name.
        write_metadata: Whether id, time, key and attributes are sent at all.
        attribute_headers: Names of attributes that are sent without the prefix, in lower case;
            each `may_be_header`.
    """
    content_type = (b"Content-Type", b"application/octet-stream")
    if not write_metadata:
        return [content_type], []
    own = {
        "x-goog-pubsub-subscription-name": subscription,
        "x-goog-pubsub-message-id": message.message_id,
        "x-goog-pubsub-publish-time": message.publish_time,
        "x-goog-pubsub-ordering-key": message.ordering_key,
    }
    headers = [header for name, value in own.items() if value and (header := _header(name, value))]
    taken: dict[str, Header] = {}
    left_out = []
    for name, value in message.attributes.items():
        shown = name if name.lower() in attribute_headers else ATTRIBUTE_PREFIX + name
        lower = shown.lower()
        fits = 0 < len(name) <= _LONGEST_NAME and lower not in taken
        header = _header(shown, value) if fits else None
        if header is None or len(taken) == _MOST_ATTRIBUTES:
            left_out.append(name)
        else:
            taken[lower] = header
    taken.setdefault("content-type", content_type)
    return [*headers, *taken.values()], left_out


def may_be_header(name: str) -> bool:
    """Tell whether an attribute of that name may be sent under its own name.

    Not where it belongs to the request itself, to what the dispatcher writes, or to what proxies
    write; ``_`` is as good as ``-``.
    """
    taken_for = _LIKE_A_HYPHEN.sub("-", name.lower())
    is_free = taken_for not in _FORBIDDEN and not taken_for.startswith(_FORBIDDEN_STARTS)
    return is_free and _TOKEN.fullmatch(name) is not None


def _header(name: str, value: str) -> Header | None:
    if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        return None
    try:
        raw = value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None
    return (name.encode(), raw) if len(raw) <= _LONGEST_VALUE else None


def _quoted(text: str) -> bytes:
    """Return *text* as a structured field's string (RFC 8941), which is ASCII without controls."""
    plain = _NOT_PLAIN.sub("?", text)
    return b'"' + plain.encode() + b'"'
