"""A broker as users have it: Pulsar's own defaults, and the short limits that show their effects.

What `pulsar_retry.standalone` starts is kinder, so that first runs are pleasant. Tests that ran on
that alone would not see what every other broker does: it deletes topics without a subscription,
rounds delays to a second, forgets which messages of a batch were acknowledged, and stops delivering
where much is unacknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pulsar_retry.standalone.config import Setting

#: Seconds by which such a broker may deliver too early: a tick of its delayed delivery.
TICK = 1.1

#: What turns a standalone Pulsar, or a broker of a cluster, into that one.
HOSTILE: Mapping[str, Setting] = MappingProxyType(
    {
        # Pulsar's defaults, which the embedded Pulsar changes.
        "acknowledgmentAtBatchIndexLevelEnabled": False,
        "brokerDeleteInactiveTopicsEnabled": True,
        "delayedDeliveryTickTimeMillis": 1000,
        # Pulsar waits for a minute before it deletes a topic, which no test could.
        "brokerDeleteInactiveTopicsFrequencySeconds": 1,
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 2,
        # Pulsar's is 50,000. Prefetched messages count, so this is the smallest that works with
        # pulsar-client's receiver queue of 1,000.
        "maxUnackedMessagesPerConsumer": 1000,
    }
)
