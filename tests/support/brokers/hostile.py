"""A broker as users have it: Pulsar's defaults, with shorter limits so that tests see the effects.

What `pulsar_retry.standalone` starts has gentler settings, so that first runs are pleasant. Tests
with only those settings would miss what every other broker does: it deletes topics without a
subscription, rounds delays to a second, forgets which messages of a batch were acknowledged, and
stops delivery if many messages are unacknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pulsar_retry.standalone.config import Setting

#: Seconds by which such a broker may deliver too early: one tick of its delayed delivery.
TICK = 1.1

#: The settings that turn a standalone Pulsar, or a broker of a cluster, into such a broker.
HOSTILE: Mapping[str, Setting] = MappingProxyType(
    {
        # Pulsar's defaults, which the standalone Pulsar changes.
        "acknowledgmentAtBatchIndexLevelEnabled": False,
        "brokerDeleteInactiveTopicsEnabled": True,
        "delayedDeliveryTickTimeMillis": 1000,
        # Unused topics stay for a minute, as by default. The broker looks for them each second, for
        # the fixture `swept` makes that minute a second where their deletion is the subject.
        "brokerDeleteInactiveTopicsFrequencySeconds": 1,
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 60,
        # The default is 50,000. Prefetched messages count, so this is the smallest that works with
        # pulsar-client's receiver queue of 1,000.
        "maxUnackedMessagesPerConsumer": 1000,
    }
)
