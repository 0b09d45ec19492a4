"""A pulled message, to be settled on an event loop."""

from __future__ import annotations

from pulsar_retry.asyncio.bridge import Pool
from pulsar_retry.asyncio.failing import translating_errors
from pulsar_retry.policy.durations import Duration
from pulsar_retry.pull import delivery as threaded


class Delivery:
    """A message that `Client.pull` returned, to be settled once.

    Its methods mean what those of `pulsar_retry.Delivery` do, with the same arguments and errors.

    Attributes:
        message: The `pulsar.Message`.
        attempt: Which attempt this is, 1 for the first (Pub/Sub's ``delivery_attempt``).
    """

    def __init__(self, delivery: threaded.Delivery, pool: Pool) -> None:
        self._inner = delivery
        self._pool = pool
        self.message = delivery.message
        self.attempt = delivery.attempt

    def __repr__(self) -> str:
        return repr(self._inner)

    async def ack(self) -> None:
        """Acknowledge the message: it is done with. Never waits."""
        with translating_errors():
            self._inner.ack()

    async def nack(
        self,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Have the message come back, or dead-lettered if this was its last attempt."""
        await self._pool.run(lambda: self._inner.nack(delay=delay, level=level, error=error))

    async def dead_letter(
        self, reason: str = "rejected", *, error: Exception | None = None
    ) -> None:
        """Move the message to the dead-letter topic now."""
        await self._pool.run(lambda: self._inner.dead_letter(reason, error=error))

    async def modify(self, seconds: Duration) -> None:
        """Have the lease end so many seconds from now (Pub/Sub's ``modify_ack_deadline``)."""
        with translating_errors():
            self._inner.modify(seconds)

    async def hand_back(self) -> None:
        """Have the message delivered again at once: nobody has tried it."""
        with translating_errors():
            self._inner.hand_back()
