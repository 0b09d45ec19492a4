"""The same names for asyncio: ``async with pulsar_retry.asyncio.Client(url) as client: ...``.

Each class is a subclass of the one of `pulsar.asyncio` of that name, where there is one, with what
`pulsar_retry` adds to it. What waits for a broker is awaitable; no call of it blocks the event
loop, and none takes a thread of its own. What does not wait is a plain method, as in
`pulsar.asyncio`.
"""

from pulsar.asyncio import PulsarException

from pulsar_retry.asyncio.client import Client
from pulsar_retry.asyncio.consumer import Consumer
from pulsar_retry.asyncio.delivery import Delivery
from pulsar_retry.asyncio.producer import Producer
from pulsar_retry.asyncio.reader import Reader
from pulsar_retry.asyncio.subscriber import Subscriber

__all__ = [
    "Client",
    "Consumer",
    "Delivery",
    "Producer",
    "PulsarException",
    "Reader",
    "Subscriber",
]
