"""A pulled message, to settle on an event loop."""

from __future__ import annotations

from pulsar_retry.asyncio.bridge import Pool
from pulsar_retry.asyncio.failing import translating_errors
from pulsar_retry.policy.durations import Duration
from pulsar_retry.pull import delivery as threaded


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

    async def ack(self) -> None:
        """Acknowledge the message. It never waits."""
        with translating_errors():
            self._inner.ack()

    async def nack(
        self,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Have the message redelivered, or dead-lettered if this was its last attempt."""
        await self._pool.run(lambda: self._inner.nack(delay=delay, level=level, error=error))

    async def dead_letter(
        self, reason: str = "rejected", *, error: Exception | None = None
    ) -> None:
        """Move the message to the dead-letter topic now."""
        await self._pool.run(lambda: self._inner.dead_letter(reason, error=error))

    async def modify(self, seconds: Duration) -> None:
        """Let the lease end this many seconds from now (Pub/Sub's ``modify_ack_deadline``)."""
        with translating_errors():
            self._inner.modify(seconds)

    async def hand_back(self) -> None:
        """Have the message redelivered at once; this does not count as an attempt."""
        with translating_errors():
            self._inner.hand_back()
