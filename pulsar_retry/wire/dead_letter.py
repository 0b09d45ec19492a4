"""A dead letter as one value, from any writer, and what a redrive makes of it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import attrs

from pulsar_retry.wire.envelope import PUBLISHED, READ, Envelope, read_envelope
from pulsar_retry.wire.names import Naming
from pulsar_retry.wire.owner import Owner
from pulsar_retry.wire.properties import (
    DEDUPE_ID,
    DELAY,
    DELAY_TIME,
    FAILURE,
    FAILURE_CRASHES,
    FAILURE_STAMP,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    REDRIVE_COUNT,
    REDRIVE_ID,
    RETRY_TOPIC,
    SYSTEM_PROPERTIES,
    WireMessage,
    redrive_count,
)

_READ = READ | SYSTEM_PROPERTIES | {DELAY, REDRIVE_COUNT, REDRIVE_ID}


class DeadMessage(WireMessage, Protocol):
    """The part of `pulsar.Message` that is read here."""

    def data(self) -> bytes:
        """Return the payload."""
        ...

    def has_null_value(self) -> bool:
        """Tell whether the message has a null value, and so no payload."""
        ...


@attrs.frozen
class DeadLetter:
    """A dead letter: what failed, and for which message.

    It reads letters of this package, of the Java, Go and TDMQ clients, of pulsar-client's own
    dead-letter policy, and of Pub/Sub. A value that is missing or unreadable is None; nothing
    raises.

    Attributes:
        failure: The failure, and the origin of the message.
        payload: The unchanged bytes of the message; None for a null value.
        redrives: How often the message was redriven.
        properties: The message's other properties.
    """

    failure: Envelope
    payload: bytes | None = None
    redrives: int = 0
    properties: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, message: DeadMessage) -> DeadLetter:
        """Read *message*. If properties are not UTF-8, pulsar-client returns none of them."""
        try:
            properties = message.properties()
        except UnicodeDecodeError:
            properties = {}
        return cls.read(properties, None if message.has_null_value() else message.data())

    @classmethod
    def read(cls, properties: Mapping[str, str], payload: bytes | None = None) -> DeadLetter:
        """Read a mapping of properties, for example from a row."""
        return cls(
            read_envelope(properties),
            payload,
            redrive_count(properties),
            {name: text for name, text in properties.items() if name not in _READ},
        )


# -- redriving -------------------------------------------------------------------------------------

#: Targets of a redrive, besides the name of a topic.
RETRY, ORIGIN = "retry", "origin"

#: The delay, the stamp and the crashes of the last attempt, and the time of the first publication.
#: A redrive always removes them: the message is new work, and its age begins again.
_NEVER_KEPT = frozenset({DELAY_TIME, FAILURE_STAMP, FAILURE_CRASHES}) | PUBLISHED
#: Properties about failures, of any writer.
_FAILURES = READ - SYSTEM_PROPERTIES


def next_redrive(properties: Mapping[str, str], maximum: int) -> int | None:
    """Return the number of a letter's next redrive; None if the maximum is reached.

    Without a maximum, a message that always fails and is always redriven would circulate for ever.

    Args:
        properties: The dead letter's properties.
        maximum: How often the message can be redriven.
    """
    count = redrive_count(properties) + 1
    return count if count <= maximum else None


def dedupe_id(properties: Mapping[str, str], position: str, count: int) -> str:
    """Return an id that is the same for all copies that one redrive makes of one dead letter.

    Args:
        properties: The dead letter's properties. Its present id becomes part of the new one.
        position: The dead letter's topic and message id.
        count: The number of this redrive of the message.
    """
    text = f"{properties.get(DEDUPE_ID) or position}\n{count}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@attrs.frozen
class RedriveProperties:
    """How a redrive changes a dead letter's properties.

    On a retry topic it stays a letter of its owner. Elsewhere it is a new message: the properties
    that name the failed subscription are removed, because a different one may fail next. If the
    number of attempts is kept on the topic that it came from, the names stay too, so that only
    the owner believes the number.

    Attributes:
        job: The id of the redrive.
        to: ``retry``, ``origin`` or a topic.
        naming: The dialect of the owner; TDMQ's write a level, which is removed.
        keep_failure: Keep the properties about failures.
        keep_attempts: Keep the number of attempts; otherwise it restarts.
    """

    job: str
    to: str
    naming: Naming = Naming.PULSAR
    keep_failure: bool = False
    keep_attempts: bool = False

    def build(
        self, properties: Mapping[str, str], *, count: int, position: str, owner: Owner
    ) -> dict[str, str]:
        """Return the properties of the redriven message.

        Args:
            properties: The dead letter's properties.
            count: The number of this redrive of the message.
            position: The dead letter's topic and message id.
            owner: The topics and the subscription of the letter.
        """
        keeps_origin = self.to == RETRY and owner.fits(Owner.named_by(properties))
        kept = {
            name: text
            for name, text in properties.items()
            if self._keeps(name, origin=keeps_origin)
        }
        names = {REAL_TOPIC: owner.topic, REAL_SUBSCRIPTION: owner.subscription}
        if self.to == RETRY:
            names[RETRY_TOPIC] = owner.retry
        elif self.to != ORIGIN or not self.keep_attempts:
            names = {}
        kept.update({name: text for name, text in names.items() if text is not None})
        kept[DEDUPE_ID] = dedupe_id(properties, position, count)
        kept[REDRIVE_COUNT] = str(count)
        kept[REDRIVE_ID] = self.job
        return kept

    def _keeps(self, name: str, *, origin: bool) -> bool:
        """Tell whether a redriven message has a property of its letter."""
        if name in _NEVER_KEPT:
            return False
        if name == DELAY:
            return not self.naming.is_tdmq
        if name == RECONSUMETIMES:
            return self.keep_attempts
        if name in SYSTEM_PROPERTIES:
            return origin
        return self.keep_failure or not (name in _FAILURES or name.startswith(FAILURE))
