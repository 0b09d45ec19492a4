"""The properties of retry letters and dead letters.

The names, their order, and the rules for existing values are those of the Java client. The Go
client and TDMQ read and write the same properties.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Protocol

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import logical

RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
#: The Java client's misspelling of the same name. Both are written, and either is read.
ORIGIN_MESSAGE_ID_OLD = "ORIGIN_MESSAGE_IDY_TIME"
#: TDMQ's level; -1 for an explicit delay. Only TDMQ's dialects write it.
DELAY = "DELAY"
#: The prefix of all properties about a failure.
FAILURE = "FAILURE_"
FAILURE_REASON = "FAILURE_REASON"
#: The error's type or condition, and its text.
FAILURE_ERROR = "FAILURE_ERROR"
FAILURE_MESSAGE = "FAILURE_MESSAGE"
#: The end of its traceback, and a hash that is the same for errors raised in the same place.
FAILURE_TRACEBACK = "FAILURE_TRACEBACK"
FAILURE_FINGERPRINT = "FAILURE_FINGERPRINT"
#: The number of the failed attempt, and when the message was first published (ISO 8601, UTC).
FAILURE_ATTEMPT = "FAILURE_ATTEMPT"
FAILURE_PUBLISH_TIME = "FAILURE_PUBLISH_TIME"
#: The stage of the pipeline. For rows that a job could not process also: the rules (separated by
#: commas), the source (JSON), the job and task (JSON), and the time (ISO 8601, UTC).
FAILURE_STAGE = "FAILURE_STAGE"
FAILURE_RULE = "FAILURE_RULE"
FAILURE_SOURCE = "FAILURE_SOURCE"
FAILURE_TASK = "FAILURE_TASK"
FAILURE_TIME = "FAILURE_TIME"
#: The order of a message's letters, and how many worker processes the message has killed.
FAILURE_STAMP = "FAILURE_STAMP"
FAILURE_CRASHES = "FAILURE_CRASHES"
#: The span of the message's first attempt, in the format of W3C's Trace Context.
FAILURE_TRACEPARENT = "FAILURE_TRACEPARENT"
#: The same for messages that describe one failure, so that duplicates can be recognized.
DEDUPE_ID = "DEDUPE_ID"
#: The topic, an @, and the version of the schema that a letter was written with, if its own topic
#: refuses that schema.
WRITER_SCHEMA = "WRITER_SCHEMA"
#: How often a message was redriven from a dead-letter topic.
REDRIVE_COUNT = "REDRIVE_COUNT"
#: The id of the last redrive.
REDRIVE_ID = "REDRIVE_ID"

#: A caller of `reconsume_later` cannot change these.
SYSTEM_PROPERTIES = frozenset(
    {
        RECONSUMETIMES,
        DELAY_TIME,
        REAL_TOPIC,
        REAL_SUBSCRIPTION,
        RETRY_TOPIC,
        ORIGIN_MESSAGE_ID,
        ORIGIN_MESSAGE_ID_OLD,
    }
)

#: Names that a user's property cannot have, in addition to names that start with `FAILURE`.
RESERVED_PROPERTIES = SYSTEM_PROPERTIES | {
    *(DELAY, DEDUPE_ID, WRITER_SCHEMA, REDRIVE_COUNT, REDRIVE_ID)
}

#: The text form of a message id in pulsar-client.
_CLIENTS_ID = re.compile(r"\(-?[0-9]+(,-?[0-9]+){3}\)", re.ASCII)

_COUNT = re.compile(r"\+?0*([0-9]+)", re.ASCII)
_MOST_DIGITS = 10
_SMALL = {str(count): count for count in range(100)}
_MAX_COUNT = 2**31 - 1  # Java reads an int
_DELAY = re.compile(r"[0-9]{1,19}", re.ASCII)
_MAX_DELAY_TIME = 2**63 - 1  # and a long

#: What functions of a message accept.
_A_MESSAGE = "a message as it was received"

_log = logging.getLogger("pulsar_retry")
_garbage_seen = False


class WireMessage(Protocol):
    """The part of `pulsar.Message` that is read here."""

    def properties(self) -> dict[str, str]:
        """Return the properties."""
        ...

    def redelivery_count(self) -> int:
        """Return how often the broker has redelivered the message."""
        ...


@attrs.define
class Origin:
    """Where a message was delivered from, as its letters describe it.

    One is made for each letter; frozen, it costs twice.

    Attributes:
        topic: The full topic name, with its partition if it has one.
        message_id: ``ledger:entry:partition``, followed by ``:batch`` for a message of a batch.
        subscription: The subscription that consumes the message.
    """

    topic: str
    message_id: str
    subscription: str


def message_id_text(message_id: object) -> str:
    """Return a message id in the text form of the Java client.

    The form is ``ledger:entry:partition``, followed by ``:batch`` for a message of a batch. For a
    chunked message it is the ids of the first and the last chunk, separated by a semicolon.
    pulsar-client's form is ``(ledger,entry,partition,batch)``, where a batch of -1 means no batch.
    """
    text = str(message_id)
    if ";" in text:
        return ";".join(message_id_text(each) for each in text.split(";"))
    return text[1:-1].replace(",", ":").removesuffix(":-1")


def origin_message_id(properties: Mapping[str, str]) -> str | None:
    """Return the id of the first publication from either property, in the Java client's form.

    Java, Go and this package write that form; pulsar-client writes a different one.
    """
    text = properties.get(ORIGIN_MESSAGE_ID) or properties.get(ORIGIN_MESSAGE_ID_OLD)
    return message_id_text(text) if text and _CLIENTS_ID.fullmatch(text) else text


def count_of(text: str | None) -> int | None:
    """Return a count; None if it is absent or unreadable.

    A count that is too large for Java's int becomes the largest int, because 0 would restart it.
    """
    if text is None:
        return None
    if (small := _SMALL.get(text)) is not None:  # it is read several times per letter
        return small
    found = _COUNT.fullmatch(text)
    if found is None:
        return None
    digits = found[1]
    return _MAX_COUNT if len(digits) > _MOST_DIGITS else min(int(digits), _MAX_COUNT)


def reconsume_times(properties: Mapping[str, str]) -> int:
    """Return how often a message was reconsumed; 0 if the property is absent or unreadable."""
    text = properties.get(RECONSUMETIMES)
    count = count_of(text)
    if count is None and text is not None:
        _warn_of_garbage(text)
    return count or 0


def redrive_count(properties: Mapping[str, str]) -> int:
    """Return how often a message was redriven; 0 if the property is absent or unreadable."""
    return count_of(properties.get(REDRIVE_COUNT)) or 0


def delay_ms_of(text: str | None) -> int | None:
    """Return a delay from the wire in milliseconds; None if it is absent or unreadable."""
    if text is None or not _DELAY.fullmatch(text) or int(text) > _MAX_DELAY_TIME:
        return None
    return int(text)


def _warn_of_garbage(text: str) -> None:
    global _garbage_seen  # noqa: PLW0603 - logged once per process, to keep the log readable
    if not _garbage_seen:
        _garbage_seen = True
        _log.warning(
            "%s=%.40r is not a count and is read as 0; further cases are not logged",
            RECONSUMETIMES,
            text,
        )


def checked_custom(
    custom: Mapping[str, str] | None, carried: Mapping[str, str]
) -> Mapping[str, str] | None:
    """Return the caller's properties, without those of the system.

    Raises:
        ConfigError: they are not a mapping, one is not str to str or contains a lone surrogate
            (which UTF-8 cannot encode), or one would change a system property.
    """
    if custom is None:
        return None
    if not isinstance(custom, Mapping):
        raise ConfigError.bad("properties", custom, "a mapping of str names to str values")
    for name, value in custom.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError.bad("properties", {name: value}, "str names with str values")
        try:
            name.encode()
            value.encode()
        except UnicodeEncodeError:
            accepted = "text without lone surrogates"
            raise ConfigError.bad("properties", {name: value}, accepted) from None
        if name in SYSTEM_PROPERTIES and carried.get(name) != value:
            raise ConfigError.bad(
                "properties", {name: value}, f"names other than {name}, which the system uses"
            )
    return {name: value for name, value in custom.items() if name not in SYSTEM_PROPERTIES}


def _with_origin(properties: dict[str, str], origin: Origin) -> dict[str, str]:
    """Add the origin's properties that are absent. The two names of the id get the same value."""
    if REAL_TOPIC not in properties:
        properties[REAL_TOPIC] = logical(origin.topic)
    if not (ORIGIN_MESSAGE_ID in properties and ORIGIN_MESSAGE_ID_OLD in properties):
        either = properties.get(ORIGIN_MESSAGE_ID) or properties.get(ORIGIN_MESSAGE_ID_OLD)
        properties.setdefault(ORIGIN_MESSAGE_ID_OLD, either or origin.message_id)
        properties.setdefault(ORIGIN_MESSAGE_ID, either or origin.message_id)
    if REAL_SUBSCRIPTION not in properties:
        properties[REAL_SUBSCRIPTION] = origin.subscription
    return properties


def counts(count: int, delay: float, level: int | None) -> dict[str, str]:
    """Return the properties for a letter's reconsume count, its delay in seconds, and its level.

    Only TDMQ's dialects write a level (-1: an explicit delay). None: no level is written.
    """
    milliseconds = str(round(delay * 1000))
    properties = {RECONSUMETIMES: str(min(_MAX_COUNT, count)), DELAY_TIME: milliseconds}
    return properties if level is None else properties | {DELAY: str(level)}


def origin_id(message_id: str) -> dict[str, str]:
    """Return the properties for the id of the first publication, under both names."""
    return {ORIGIN_MESSAGE_ID_OLD: message_id, ORIGIN_MESSAGE_ID: message_id}


def letter_properties(
    carried: Mapping[str, str],
    origin: Origin,
    *,
    count: int,
    delay: float,
    retry_topic: str | None,
    custom: Mapping[str, str] | None = None,
    level: int | None = None,
) -> dict[str, str]:
    """Return the properties of the letter that `reconsume_later` writes.

    Args:
        carried: The message's own properties.
        origin: Where the message was delivered from. It is used if *carried* has no older origin.
        count: The new reconsume count.
        delay: The requested seconds. A dead letter has them too, but is not delayed.
        retry_topic: The full name of the retry topic for a retry letter; None for a dead letter.
        custom: The caller's properties, already checked.
        level: The delay level for TDMQ's dialects (-1: explicit delay); None: not written.
    """
    properties = _with_origin(dict(carried), origin)
    if retry_topic is not None:
        properties.setdefault(RETRY_TOPIC, retry_topic)
    if custom:
        properties.update(custom)
    properties.update(counts(count, delay, level))
    return properties


def dead_letter_properties(
    carried: Mapping[str, str], origin: Origin, *, custom: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the properties of a dead letter that was not caused by the retry count.

    These are dead letters of the nack path and of `dead_letter`. As in Java, their count and delay
    are not changed.
    """
    return _with_origin(dict(carried), origin) | dict(custom or {})


@attrs.frozen
class RetryProperties:
    """The properties of a message about its retries, in any dialect.

    Attributes:
        reconsume_times: How often it was reconsumed; 0 if this is absent or unreadable.
        delay: The delay of the last retry in seconds.
        real_topic: The topic of the first publication.
        real_subscription: The subscription that failed.
        origin_message_id: The id of the first publication, ``ledger:entry:partition[:batch]``.
        retry_topic: The retry topic.
    """

    reconsume_times: int
    delay: float | None
    real_topic: str | None
    real_subscription: str | None
    origin_message_id: str | None
    retry_topic: str | None

    @classmethod
    def of(cls, message: WireMessage) -> RetryProperties:
        """Read the properties of *message*.

        Raises:
            ConfigError: *message* is not a message.
        """
        try:
            properties = message.properties()
        except AttributeError:
            raise ConfigError.bad("message", message, _A_MESSAGE) from None
        return cls.read(properties)

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> RetryProperties:
        """Read a mapping of properties, for example from a row."""
        milliseconds = delay_ms_of(properties.get(DELAY_TIME))
        return cls(
            reconsume_times=reconsume_times(properties),
            delay=None if milliseconds is None else milliseconds / 1000,
            real_topic=properties.get(REAL_TOPIC),
            real_subscription=properties.get(REAL_SUBSCRIPTION),
            origin_message_id=origin_message_id(properties),
            retry_topic=properties.get(RETRY_TOPIC),
        )


def attempt_of(message: WireMessage) -> int:
    """Return the number of the attempt that this delivery is; the first one is 1.

    It is 1 + the reconsume count + the broker's redelivery count. The reconsume count is stored in
    the message, so it is durable. The redelivery count is only in the broker's memory: it restarts
    when the topic is unloaded, the broker restarts, or the subscription's last consumer leaves. On
    Exclusive and Failover subscriptions it is always 0. Retries in a subscriber's lane are counted
    too; their count is in memory.

    It is what the message says. An application can have copied its properties from a message of
    another subscription; consumers do not believe such a count, but this function does.

    Raises:
        ConfigError: *message* is not a message.
    """
    try:
        properties, redeliveries = message.properties(), message.redelivery_count()
    except AttributeError:
        raise ConfigError.bad("message", message, _A_MESSAGE) from None
    in_lane: int = getattr(message, "retries_in_lane", 0)
    return 1 + reconsume_times(properties) + redeliveries + in_lane
