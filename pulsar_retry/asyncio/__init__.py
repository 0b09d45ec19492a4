"""The same names for asyncio: ``async with pulsar_retry.asyncio.Client(url) as client: ...``.

Each class is a subclass of the class of that name in `pulsar.asyncio`, if there is one, with the
features of `pulsar_retry`. Methods that wait for a broker are awaitable, and do not block the event
loop. Receives, sends and hand-offs wait without a thread; rarer calls, such as opening, closing and
pulling, use a small pool of threads. Methods that do not wait are plain methods, as in
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
