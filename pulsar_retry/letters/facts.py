"""What a received message says about itself: its origin, its identity, and its stamp. Pure.

The identity of a retry letter is the message that it was first made from. `ORIGIN_MESSAGE_ID` alone
does not tell it. As in the Java client, it is only written if it is absent, and applications copy
properties, including system properties, to other messages. It therefore counts only if one of this
package's producers wrote it. These producers have unique names that begin with `pulsar-retry-`.
They publish the retry letters of messages that had no origin, or one that counts. Letters of copied
messages, and of other clients' letters, are published by producers without such a name.

The stamp of a subscriber's letter gives the order of all letters of one message. It is the time at
which the letter was made, in microseconds since 1970, and always greater than the stamp of the
letter that it was made from, and than those of the process's other letters of the same message. So
a wrong clock cannot make a letter look older than the one that it continues.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from pulsar_retry.wire.envelope import moment_of, read_published
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import (
    FAILURE_STAMP,
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    Origin,
    message_id_text,
    origin_message_id,
)

_PREFIX = "pulsar-retry-"

#: What the names of topics begin with whose messages have no ids of their own.
_NO_IDS = "non-persistent:"

#: int() alone would accept digits of other scripts, and raise an error for more than 4300 digits.
_STAMP = re.compile(r"[0-9]{1,19}", re.ASCII)


class Facts:
    """What a message says about its origin. Each look at a raw message costs microseconds.

    Attributes:
        properties: The properties of the message, without what is another's (`Recipient.own`);
            empty if they are not all UTF-8, because pulsar-client gives none of them then.
        is_text: Whether they are.
        topic: The full name of the topic that it was delivered from.
        message_id: Its id, as letters write it.
        published: When it was first published; for other clients' letters, the letter's time.
        key: The identity of the message, which all of its letters share.
        chain: The same, but a redrive begins a new one, and properties that an application has
            copied from other messages are not part of it.
        crashes: How many worker processes it has killed since it was delivered, in its lane.
    """

    __slots__ = (
        "chain",
        "crashes",
        "is_text",
        "key",
        "message_id",
        "properties",
        "published",
        "topic",
    )

    def __init__(self, message: Any, recipient: Recipient) -> None:
        self.topic: str = message.topic_name()
        self.properties: Mapping[str, str] = {}
        self.is_text = True
        try:
            self.properties = recipient.own(message.properties(), self.topic)
        except UnicodeDecodeError:
            self.is_text = False
        self.message_id = message_id_text(message.message_id())
        origin = origin_message_id(self.properties) or self.message_id
        self.key = f"{self.properties.get(REAL_TOPIC) or logical(self.topic)} {origin}"
        if self.topic.startswith(_NO_IDS):
            self.chain = self.key
        else:
            self.chain = identity_of(message, self.properties) or self.message_id
        self.crashes = 0
        sent = moment_of(message.publish_timestamp())
        self.published = read_published(self.properties) or sent

    @property
    def name(self) -> str:
        """What tells the message and its letters from others until a redrive.

        It is `chain`, but letters have none if their origin was copied, or written by another
        client. Then it is `key`, which all messages with this origin share.
        """
        has_none = self.chain == self.message_id and origin_message_id(self.properties)
        return self.key if has_none else self.chain

    def origin(self, subscription: str) -> Origin:
        """Return the origin of a letter that *subscription* makes of the message."""
        return Origin(self.topic, self.message_id, subscription)


def facts_of(message: Any, recipient: Recipient) -> Facts:
    """Return the facts about a message for its recipient; the message keeps them."""
    facts: Facts | None = getattr(message, "facts", None)
    if facts is None:
        facts = message.facts = Facts(message, recipient)
    return facts


# -- identity -------------------------------------------------------------------------------------


def new_producer_name() -> str:
    """Return a unique name for a producer of letters with an identity."""
    return f"{_PREFIX}{uuid.uuid4().hex}"


def is_published_here(raw: Any) -> bool:
    """Tell whether a producer of this package has published the raw message as a letter."""
    return str(raw.producer_name()).startswith(_PREFIX)


def identity_of(raw: Any, properties: Mapping[str, str]) -> str | None:
    """Return the identity of the letter *raw*, by its *properties*; None if it has none."""
    written = properties.get(ORIGIN_MESSAGE_ID)  # empty, it would be that of many messages
    if not written or not is_published_here(raw) or raw.topic_name().startswith(_NO_IDS):
        return None
    return written


def gives_identity(raw: Any, properties: Mapping[str, str], origin: Origin | None = None) -> bool:
    """Tell whether a letter of *raw* has an identity, that is, the origin of *raw*.

    Args:
        raw: The raw message that the letter is made from.
        properties: The letter's properties.
        origin: Where *raw* was delivered from; None: it is read from *raw*.
    """
    written = properties.get(ORIGIN_MESSAGE_ID)
    if not written or (raw.topic_name() if origin is None else origin.topic).startswith(_NO_IDS):
        return False
    if origin is not None:
        is_first = written == origin.message_id  # as usual for a first letter
    else:  # most letters of a redrive are none; a text of the whole id takes ten times as long
        message_id = raw.message_id()
        is_first = f"{message_id.ledger_id()}:" in written and written == message_id_text(
            message_id
        )
    return is_first or is_published_here(raw)


# -- stamps ---------------------------------------------------------------------------------------


def next_stamp(now: float, *earlier: int) -> int:
    """Return a stamp that is greater than the *earlier* ones; *now* is in seconds since 1970."""
    return max(round(now * 1e6), max(earlier, default=-1) + 1)


def stamp_of(properties: Mapping[str, str]) -> int | None:
    """Return the stamp of a letter; None if it has none, or an invalid one."""
    text = properties.get(FAILURE_STAMP)
    return int(text) if text and _STAMP.fullmatch(text) else None


def made_at(properties: Mapping[str, str], published: float) -> float:
    """Return when a letter was made, in seconds since 1970; it is corrected by its stamp.

    Args:
        properties: The letter's properties.
        published: When it was published, by the clock of its publisher.
    """
    stamp = stamp_of(properties)
    return published if stamp is None else max(published, stamp / 1e6)
