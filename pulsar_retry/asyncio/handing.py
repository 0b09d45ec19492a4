"""Hands messages on without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pulsar

from pulsar_retry.asyncio.bridge import Bridge, end, finish
from pulsar_retry.asyncio.failing import failure
from pulsar_retry.consumer.access import AsyncioAccess
from pulsar_retry.consumer.handoff.lists import raise_failures
from pulsar_retry.consumer.handoff.making import handed_on
from pulsar_retry.errors import ConfigError, ConsumerClosedError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.runtime.raw import raw_of, whole_of

Ended = asyncio.Future[None]


class Handing:
    """Hands messages of a consumer on, within the limit of letters in flight. On its loop only.

    Each hand-off either completes, even if its caller is cancelled, or the message is redelivered.
    """

    def __init__(self, access: AsyncioAccess, bridge: Bridge) -> None:
        self._access = access
        self._bridge = bridge
        # Waiting for a permit of the hand-off would block. This semaphore is acquired before, so
        # that a permit is free.
        self._free_permits = asyncio.Semaphore(access.max_pending_letters)

    async def _wait_for_permit(self) -> None:
        await self._free_permits.acquire()

    async def hand_on(self, message: Any, letter: Letter) -> Ended:
        """Wait for room, then publish *letter* and acknowledge *message*.

        Returns:
            A future that resolves when the message is acknowledged, or with the error.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        try:
            await self._wait_for_permit()
        except asyncio.CancelledError:
            self._access.ask_back(raw_of(message))
            raise
        ended: Ended = self._bridge.loop.create_future()
        placed = None
        try:
            if (future := self._access.outbox.hand_on_now(message, letter)) is None:
                placed = self._hand_on_in_thread(message, letter, ended)
            else:
                self._bridge.follow(future, partial(self._end, ended))
        except BaseException as error:
            self._free_permits.release()
            if isinstance(error, pulsar.PulsarException):
                raise failure(error) from None
            raise
        handed_on(message, ended)
        if placed is not None:
            await placed
        return ended

    async def all(self, messages: Sequence[Any], letter_of: Callable[[Any], Letter]) -> None:
        """Hand on *messages* with the letters that *letter_of* returns for them; wait.

        Raises:
            BatchSettleError: some messages failed; the error has their errors. The others are
                settled.
        """
        started: list[Ended | Exception] = []
        try:
            for message in messages:
                try:
                    started.append(await self.hand_on(message, letter_of(message)))
                except Exception as error:  # noqa: BLE001 - the other messages must still be settled
                    started.append(error)
        except asyncio.CancelledError:
            for message in messages[len(started) + 1 :]:
                with contextlib.suppress(ConfigError):  # it is not a message
                    self._access.ask_back(whole_of(message))
            raise
        if futures := [each for each in started if isinstance(each, asyncio.Future)]:
            await asyncio.wait(futures)
        raise_failures(
            [each.exception() if isinstance(each, asyncio.Future) else each for each in started]
        )

    def _hand_on_in_thread(
        self, message: Any, letter: Letter, ended: Ended
    ) -> asyncio.Future[None]:
        """Hand on in another thread, because it can block while the producer is opened.

        Returns:
            A future that resolves when the letter is in flight, or has failed.
        """
        outbox, bridge = self._access.outbox, self._bridge
        placed: asyncio.Future[None] = bridge.loop.create_future()

        def hand_on() -> None:
            try:
                future = outbox.hand_on(message, letter)
            except Exception as error:  # noqa: BLE001 - the caller gets the error
                future = Future()
                future.set_exception(error)
            bridge.post(partial(finish, placed))
            bridge.follow(future, partial(self._end, ended))

        if not outbox.submit(hand_on):
            raise ConsumerClosedError("the consumer is closed")
        return placed

    def _end(self, ended: Ended, future: Future[None]) -> None:
        self._free_permits.release()
        end(ended, future)
