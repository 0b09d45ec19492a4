"""The first and last message of a partition, for a batch query. Only readers are used."""

from __future__ import annotations

import time

import attrs
import pulsar

from pulsar_retry_spark.clients import CachedClient
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.positions import END, MessagePosition
from pulsar_retry_spark.source.reading import Piece, Unread, last_of, message_at

#: Milliseconds to wait for the last message; it may not come, as the last entry may be a chunk.
_LAST_TIMEOUT_MS = 5_000

#: Milliseconds by which clocks may differ.
_CLOCK_DIFFERENCE_MS = 60_000

#: How many messages are fetched ahead in the search for the last complete message.
_QUEUE = 1000

#: Milliseconds to wait for the first message, which has to come.
_FIRST_TIMEOUT_MS = 30_000

_NOTHING_COMES = (
    "{} has messages, but the broker delivers neither the first nor the last one: they may be "
    "parts of a message that is incomplete, or encrypted. Set fail_on_data_loss=false to leave "
    "these out"
)


def held(client: CachedClient, piece: Piece) -> Piece | None:
    """Return *piece*, a whole partition, from its first to its last message; None without any.

    Raises:
        PulsarSourceError: there are messages, but none comes, or they are encrypted.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    name, unread = piece.partition.name, Unread(client, piece)
    last = message_at(client, name, pulsar.MessageId.latest, _LAST_TIMEOUT_MS)
    if last is None:
        return None
    encrypted = last == END and unread.is_encrypted(pulsar.MessageId.latest)
    patience = _LAST_TIMEOUT_MS if encrypted else _FIRST_TIMEOUT_MS
    first = message_at(client, name, pulsar.MessageId.earliest, patience, piece.since)
    if first is None or (first != END and first > last):
        return None  # all of it up to the last one was published before
    if last == first == END:
        if encrypted:
            unread.warn()
            return None
        if piece.strict:
            raise PulsarSourceError("TIMEOUT", _NOTHING_COMES.format(name))
    piece = attrs.evolve(piece, end=last, first=None if first == END else first)
    return _until_now(piece) if last == END else piece


def last_message(client: CachedClient, piece: Piece) -> MessagePosition | None:
    """Return the last complete message of *piece*, a whole partition; None without any.

    Raises:
        PulsarSourceError: there are messages, but none comes, or they are encrypted.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    name = piece.partition.name
    last = message_at(client, name, pulsar.MessageId.latest, _LAST_TIMEOUT_MS)
    return last_of(client, _until_now(piece), _QUEUE) if last == END else last


def _until_now(piece: Piece) -> Piece:
    """Return *piece* up to the present time: its last entry is a chunk, so the end is not known."""
    until = round(time.time() * 1000) + _CLOCK_DIFFERENCE_MS
    return attrs.evolve(piece, until=until, certain=False)
