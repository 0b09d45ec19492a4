"""Acknowledge messages by their ids alone, and see that it was done."""

from __future__ import annotations

import time
from collections.abc import Collection

import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import SeekError
from pulsar_retry.replay.ack_state import Place
from pulsar_retry.replay.seek_survey import consumers_of, survey

#: Seconds without any progress after which it has failed, and after which to send them again.
_PATIENCE = 30.0
_AGAIN = 2.0
_LOOK = 0.05

_TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
#: The last one by name, so that no Failover consumer loses its turn.
_NAME = "zzz-pulsar-retry-seek"


def acknowledge(
    client: pulsar.Client,
    admin: AdminClient,
    topic: str,
    subscription: str,
    places: Collection[Place],
) -> None:
    """Acknowledge entries of one partition, without receiving any, and return when that is so.

    pulsar-client tells no receipt for acknowledgements, so the broker is asked.

    Raises:
        SeekError: an Exclusive consumer is in the way, or the broker does not take them.
    """
    if not places:
        return
    left, sent, since = set(places), 0.0, time.monotonic()
    consumer = _consumer(client, admin, topic, subscription)
    try:
        while True:
            now = time.monotonic()
            if now - sent > _AGAIN:
                sent = now
                for place in sorted(left):
                    consumer.acknowledge(pulsar.MessageId(-1, place.ledger, place.entry, -1))
            time.sleep(_LOOK)
            seen = survey(admin, topic, subscription)
            if seen is None:
                raise SeekError(f"{subscription!r} on {topic} was removed meanwhile; run it again")
            still = {place for place in left if not seen.acks.is_acknowledged(place)}
            if not still:
                return
            if len(still) < len(left):
                left, since = still, time.monotonic()
            if time.monotonic() - since > _PATIENCE:
                raise SeekError(
                    f"the broker has not taken {len(still)} acknowledgements on {topic} of "
                    f"{subscription!r}; run it again"
                )
    finally:
        consumer.close()


def _consumer(
    client: pulsar.Client, admin: AdminClient, topic: str, subscription: str
) -> pulsar.Consumer:
    """Open a consumer that asks for no message, beside those that are there."""
    count, kind = consumers_of(admin, topic, subscription)
    try:
        return BareClient.subscribe(
            client,
            topic,
            subscription,
            _TYPES.get(kind, pulsar.ConsumerType.Shared) if count else pulsar.ConsumerType.Shared,
            receiver_queue_size=0,
            consumer_name=_NAME,
        )
    except pulsar.ConsumerBusy:
        raise SeekError(
            f"an {kind} consumer of {subscription!r} is connected to {topic}, so nobody else can "
            "acknowledge there: stop it and run this again"
        ) from None
