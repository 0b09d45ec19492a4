"""Acknowledge messages by their ids, and check that this was done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import SeekError
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.seeking.survey import consumers_of, survey_partition

#: Seconds without progress after which the call fails, and seconds after which to send again.
_PATIENCE = 30.0
_SEND_AGAIN_AFTER = 2.0
_LOOK = 0.05

_TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
#: A name that sorts last, so that this consumer does not replace the active Failover consumer.
_NAME = "zzz-pulsar-retry-seek"


class InTheWayError(SeekError):
    """Connected consumers prevent anybody else from acknowledging."""


def acknowledge(
    client: pulsar.Client,
    admin: AdminClient,
    topic: str,
    subscription: str,
    places: Mapping[EntryPlace, Any],
) -> None:
    """Acknowledge entries of one partition without receiving them; return when this is done.

    pulsar-client gets no receipts for acknowledgements, so this asks the broker for the state.

    *places* has the entries; with the last one of a message in chunks, the raw id of the message.

    Raises:
        InTheWayError: an Exclusive consumer is connected.
        SeekError: the broker does not accept the acknowledgements.
    """
    left, since = places, time.monotonic()
    while left:
        with contextlib.closing(_consumer(client, admin, topic, subscription)) as consumer:
            _send(consumer, left)
        still = _wait(admin, topic, subscription, left)
        if len(still) < len(left):
            left, since = still, time.monotonic()
        elif time.monotonic() - since > _PATIENCE:
            raise SeekError(
                f"the broker has not accepted {len(left)} acknowledgements of {subscription!r} on "
                f"{topic}; run it again"
            )


def _send(consumer: Any, places: Mapping[EntryPlace, Any]) -> None:
    """Send acknowledgements; closing the consumer at once sends them without a delay.

    Disconnected consumers come back after a tenth of a second; this should be faster.
    """
    for place, chunks in sorted(places.items()):
        if chunks is None:
            consumer.acknowledge(pulsar.MessageId(-1, place.ledger, place.entry, -1))
        else:
            consumer._consumer.acknowledge(chunks)  # it takes raw ids


def _wait(
    admin: AdminClient, topic: str, subscription: str, places: Mapping[EntryPlace, Any]
) -> dict[EntryPlace, Any]:
    """Wait until the broker has the acknowledgements; return those that it does not have."""
    deadline = time.monotonic() + _SEND_AGAIN_AFTER
    while True:
        seen = survey_partition(admin, topic, subscription)
        if seen is None:
            raise SeekError(f"{subscription!r} on {topic} was removed meanwhile; run it again")
        left = {each: places[each] for each in places if not seen.acks.is_acknowledged(each)}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_LOOK)


def _consumer(
    client: pulsar.Client, admin: AdminClient, topic: str, subscription: str
) -> pulsar.Consumer:
    """Open a consumer that requests no messages, in addition to the connected ones."""
    _, kind = consumers_of(admin, topic, subscription)
    try:
        return BareClient.subscribe(
            client,
            topic,
            subscription,
            _TYPES.get(kind, pulsar.ConsumerType.Shared),
            receiver_queue_size=0,
            consumer_name=_NAME,
        )
    except pulsar.ConsumerBusy:
        raise InTheWayError(
            f"consumers of {subscription!r} ({kind}) are connected to {topic}, so nobody else can "
            "acknowledge there: stop them and run this again"
        ) from None
