"""A pulled message, to settle on an event loop."""

from __future__ import annotations

from typing import Any

from pulsar_retry.asyncio.bridge import Pool
from pulsar_retry.asyncio.failing import translating_errors
from pulsar_retry.asyncio.signatures import taking
from pulsar_retry.pull import puller as threaded


class Delivery:
    """A message that `Client.pull` returned, to settle once.

    Its methods work as those of `pulsar_retry.Delivery`, with the same arguments and errors.

    Attributes:
        message: The `pulsar.Message`.
        attempt: The number of this attempt; the first is 1 (Pub/Sub's ``delivery_attempt``).
    """

    def __init__(self, delivery: threaded.Delivery, pool: Pool) -> None:
        self._inner = delivery
        self._pool = pool
        self.message = delivery.message
        self.attempt = delivery.attempt

    def __repr__(self) -> str:
        return repr(self._inner)

    @taking(threaded.Delivery.ack)
    async def ack(self) -> None:  # noqa: D102 - wrapped
        with translating_errors():
            self._inner.ack()

    @taking(threaded.Delivery.nack)
    async def nack(self, **how: Any) -> None:  # noqa: D102 - wrapped
        await self._pool.run(lambda: self._inner.nack(**how))

    @taking(threaded.Delivery.dead_letter)
    async def dead_letter(self, *args: Any, **kwargs: Any) -> None:  # noqa: D102 - wrapped
        await self._pool.run(lambda: self._inner.dead_letter(*args, **kwargs))

    @taking(threaded.Delivery.modify)
    async def modify(self, *args: Any, **kwargs: Any) -> None:  # noqa: D102 - wrapped
        with translating_errors():
            self._inner.modify(*args, **kwargs)

    @taking(threaded.Delivery.hand_back)
    async def hand_back(self) -> None:  # noqa: D102 - wrapped
        with translating_errors():
            self._inner.hand_back()
