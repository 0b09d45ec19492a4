"""The managed subscriber for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from pulsar_retry.asyncio.bridge import Bridge, failure, taking
from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.pull import subscriber as threaded
from pulsar_retry.pull.report import Health, Report, StopMode, checked_mode
from pulsar_retry.pull.signals import CHECK_INTERVAL, Requests, listening


class Subscriber:
    """Calls a handler with every message of a subscription, and settles the messages.

    `Client.subscriber` makes it. It works as `pulsar_retry.Subscriber`, but ``async def`` handlers
    run on the event loop on which it is started, ``concurrency`` at a time. ``def`` handlers run on
    separate threads, as there. One thread receives. A subscriber runs once.

    If its event loop ends first, the subscriber abandons the messages in hand: they are
    redelivered.
    """

    def __init__(self, subscriber: threaded.Subscriber) -> None:
        self._inner, self._course = subscriber, subscriber.course
        self._bridge: Bridge | None = None
        self._ended: asyncio.Future[Any] | None = None

    async def start(self) -> Self:
        """Subscribe and start; return when messages can arrive.

        Cancelling the call stops the subscriber. `pulsar_retry.Subscriber.start` explains what
        happens if the broker is not reachable.

        Raises:
            RuntimeError: the subscriber was started before.
            pulsar.PulsarException: the broker refuses the subscription.
        """
        if self._bridge is not None:
            raise RuntimeError("a subscriber runs once; make another one")
        bridge = self._bridge = Bridge()
        course = self._course
        course.begin(bridge.loop)
        self._ended = bridge.follow(course.ending)
        try:
            await _done(bridge.follow(course.opening))
        except asyncio.CancelledError:
            course.ask("abandon", 0)
            raise
        if (refusal := course.refused()) is not None:
            raise failure(refusal) from refusal.__cause__
        return self

    @taking(threaded.Subscriber.run)
    async def run(self, *, mode: StopMode = "drain", timeout: Duration = 30.0) -> Report:
        checked_mode(mode, timeout)
        told = Requests(self._course.ask, mode, timeout).told
        loop = asyncio.get_running_loop()
        with listening(lambda number: loop.call_soon_threadsafe(told, number)):
            try:
                await self.start()
                await self._until_the_end()
            except asyncio.CancelledError:
                await self._stop_although_cancelled(mode, timeout)
                raise
            return await self.result()

    @taking(threaded.Subscriber.stop)
    async def stop(self, mode: StopMode = "drain", timeout: Duration = 30.0) -> Report | None:
        checked_mode(mode, timeout)
        if self._bridge is None:
            return None
        self._course.ask(mode, timeout)
        if self._course.is_handling:
            return None
        await self._until_the_end()
        return self._course.report

    @taking(threaded.Subscriber.pause)
    def pause(self, *args: Any, **kwargs: Any) -> None:
        self._inner.pause(*args, **kwargs)

    @taking(threaded.Subscriber.resume)
    def resume(self) -> None:
        self._inner.resume()

    @taking(threaded.Subscriber.result)
    async def result(self, timeout: Duration | None = None) -> Report:
        wait = None if timeout is None else seconds("timeout", timeout)
        if self._bridge is None:
            raise RuntimeError(threaded.NOT_STARTED)
        async with asyncio.timeout(wait):
            await self._until_the_end()
        try:
            return self._inner.result(0)
        except Exception as error:  # noqa: BLE001 - any error that has ended it
            raise failure(error) from error.__cause__

    @property
    def running(self) -> bool:
        """Whether the subscriber was started and has not ended."""
        return self._inner.running

    @property
    def health(self) -> Health:
        """The health: a state, and a description of the problem."""
        return self._inner.health

    @taking(threaded.Subscriber.update_policy)
    def update_policy(self, *args: Any, **kwargs: Any) -> None:
        self._inner.update_policy(*args, **kwargs)

    @property
    def in_hand(self) -> tuple[int, int]:
        """How many messages it holds, and how many bytes; flow control limits both."""
        return self._inner.in_hand

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.stop()
        if kind is None and (error := self._course.unraised()) is not None:
            raise failure(error) if isinstance(error, Exception) else error

    async def _until_the_end(self) -> None:
        assert self._bridge is not None  # it was started
        assert self._ended is not None
        self._bridge.check()
        await _done(self._ended)

    async def _stop_although_cancelled(self, mode: StopMode, timeout: Duration) -> None:
        """Stop although the caller is cancelled; abandon if it is cancelled again."""
        self._course.ask(mode, timeout)
        try:
            await self._until_the_end()
        except asyncio.CancelledError:
            self._course.ask("abandon", 0)
            await self._until_the_end()


async def _done(future: asyncio.Future[Any]) -> None:
    """Wait until *future* is done. A signal may not wake the loop, so it wakes at intervals."""
    while not future.done():
        await asyncio.wait([future], timeout=CHECK_INTERVAL)
