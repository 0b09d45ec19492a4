"""Reads the letters of a retry partition without consuming them, and publishes some again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.consumer.handoff.sending import Flight, LetterFuture
from pulsar_retry.letters.facts import is_published_here
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.ack_state import EntryPlace, Surveyed
from pulsar_retry.replay.publishing import AcknowledgedLater, hand_off_of
from pulsar_retry.replay.reading import entry_place_of, read_places
from pulsar_retry.replay.seeking.letters import OpenLetter
from pulsar_retry.wire.owner import Recipient, Stray

#: How many letters are in flight at most.
_IN_FLIGHT = 500

_LATER = AcknowledgedLater()


def read_open_letters(
    client: pulsar.Client,
    admin: AdminClient,
    seen: Surveyed,
    recipient: Recipient,
    *,
    chunked: dict[EntryPlace, Any] | None = None,
    unreadable: list[EntryPlace] | None = None,
) -> list[OpenLetter]:
    """Return the letters of a retry partition that are not acknowledged, without their payloads.

    Letters that *recipient* will not handle, because they are another's, are left out. The ids of
    chunked letters are added to *chunked*, and the places of those that cannot be read, because
    they are encrypted or incomplete, to *unreadable*.
    """
    letters = []
    for raw in read_places(client, admin, seen, unreadable=unreadable):
        place, properties = entry_place_of(raw), raw.properties()
        if recipient.stray(properties, is_ours=is_published_here(raw)) is Stray.DROPPED:
            continue
        own = recipient.own(properties, seen.topic)
        batch = raw.message_id().batch_index()
        letters.append(OpenLetter.read(place, raw.publish_timestamp(), own, batch))
        if chunked is not None and ";" in str(raw.message_id()):
            chunked[place] = raw.message_id()
    return letters


def publish_again(
    client: Client,
    admin: AdminClient,
    seen: Surveyed,
    places: Collection[EntryPlace],
    *,
    topic: str,
    properties: Callable[[Any], dict[str, str]],
    unreadable: list[EntryPlace] | None = None,
) -> list[EntryPlace]:
    """Publish the messages of a partition at *places* to *topic*; return when all are stored.

    Args:
        client: Reads and publishes.
        admin: Says how far the reader is.
        seen: The partition.
        places: The places of the messages.
        topic: The topic of the letters.
        properties: Returns the properties of the letter that is made from a raw message.
        unreadable: Gets the *places* that cannot be read.

    Returns:
        The places of those that were published, once for each message of a batch. The others
        cannot be read.

    Raises:
        LetterPublishError: a letter was not stored. Nothing is acknowledged yet.
    """
    published: list[EntryPlace] = []
    under_way: deque[Future[None]] = deque()
    with hand_off_of(client, max_pending=_IN_FLIGHT, natively=False) as hand_off:
        for raw in read_places(client, admin, seen, places, unreadable):
            letter = Letter(topic, properties(raw))
            flight = Flight(hand_off, raw, _LATER, letter, raw.length(), LetterFuture())
            under_way.append(hand_off.hand_on(flight))
            published.append(entry_place_of(raw))
            if len(under_way) >= _IN_FLIGHT:
                under_way.popleft().result()
        for each in under_way:
            each.result()
    return published
