"""The same names for asyncio: ``async with pulsar_retry.asyncio.Client(url) as client: ...``.

`Client` and `Consumer` are subclasses of those of `pulsar.asyncio`, with the features of
`pulsar_retry`; `Producer` and `Reader` are those of `pulsar.asyncio` themselves. Methods that wait
for a broker are awaitable, and do not block the event loop. One thread for each consumer waits for
its messages; rarer calls, such as opening, closing and pulling, use a small pool of threads.
Methods that do not wait are plain methods, as in `pulsar.asyncio`.
"""

import pulsar.asyncio

from pulsar_retry.asyncio.client import Client, Delivery
from pulsar_retry.asyncio.consumer import Consumer
from pulsar_retry.asyncio.subscriber import Subscriber

# After the imports above, which say what an older pulsar-client lacks.
Producer = pulsar.asyncio.Producer
PulsarException = pulsar.asyncio.PulsarException
Reader = pulsar.asyncio.Reader

__all__ = [
    "Client",
    "Consumer",
    "Delivery",
    "Producer",
    "PulsarException",
    "Reader",
    "Subscriber",
]
