"""The managed subscriber and the synchronous pull, both built on the consumer.

The modules in `rules` are pure: the caller passes the time, and they use neither threads nor a
broker. `engine` has the threads and the state of a subscriber, and `workers` calls the handlers.
"""

import typing

from pulsar_retry import _lazy

if typing.TYPE_CHECKING:
    from pulsar_retry.pull.delivery import Delivery
    from pulsar_retry.pull.health import Health
    from pulsar_retry.pull.report import Report
    from pulsar_retry.pull.rules.breaker import Breaker
    from pulsar_retry.pull.rules.flow import FlowControl
    from pulsar_retry.pull.rules.lanes import Lanes
    from pulsar_retry.pull.rules.lease import Lease
    from pulsar_retry.pull.subscriber import Subscriber
else:
    __getattr__ = _lazy.getattr_of(__name__)  # most of its modules need threads and pulsar-client

__all__ = [
    "Breaker",
    "Delivery",
    "FlowControl",
    "Health",
    "Lanes",
    "Lease",
    "Report",
    "Subscriber",
]
