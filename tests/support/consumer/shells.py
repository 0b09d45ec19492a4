"""One interface for both shells, so that one scenario runs on each of them; and one for asyncio."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: Seconds for a whole scenario: more than for one wait in it, which then says what is wrong.
LONGEST = 240

#: The first topic of a namespace takes a busy broker long.
PATIENT: dict[str, Any] = {"operation_timeout_seconds": 90}

SHELLS = ("threads", "asyncio")

#: The classes of objects that a shell makes and whose methods a scenario awaits.
_THINGS = (
    pulsar.Client,
    pulsar.Consumer,
    pulsar.Producer,
    pulsar.Reader,
    pr.Subscriber,
    pr.Delivery,
    pr.asyncio.Client,
    pr.asyncio.Consumer,
    pr.asyncio.Producer,
    pr.asyncio.Reader,
    pr.asyncio.Subscriber,
    pr.asyncio.Delivery,
)


class Face:
    """A client, or an object that it has made, with every method awaitable.

    Attributes:
        thing: The wrapped object.
    """

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.thing, name)
        return self._awaitable(member) if callable(member) else member

    def _awaitable(self, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if type(self.thing).__module__.startswith(("pulsar_retry.asyncio", "pulsar.asyncio")):
                result = method(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = await result
            else:
                result = await asyncio.to_thread(method, *args, **kwargs)
            return _faced(result)

        return call


def _faced(result: Any) -> Any:
    if isinstance(result, list):
        return [_faced(each) for each in result]
    if isinstance(result, Future):
        return asyncio.wrap_future(result)
    return Face(result) if isinstance(result, _THINGS) else result


def opened(kind: str, url: str) -> Face:
    """Return a client of the shell *kind*."""
    make = pr.asyncio.Client if kind == "asyncio" else pr.Client
    return Face(make(url, logger=QUIET, **PATIENT))


def on_both_shells(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of a scenario, which takes a client, a topic and optionally the REST API."""
    more = list(inspect.signature(scenario).parameters)[2:]

    def test(shell: str, broker: Any, topic: str, admin: Any) -> None:
        async def play() -> None:
            client = opened(shell, broker.service_url)
            try:
                await asyncio.wait_for(scenario(client, topic, *[admin for _ in more]), LONGEST)
            finally:
                with suppress(pulsar.AlreadyClosed):
                    await client.close()

        asyncio.run(play())

    test.__doc__, test.__name__ = scenario.__doc__, scenario.__name__
    return pytest.mark.parametrize("shell", SHELLS)(test)


def on_a_loop(
    broker: Any, scenario: Callable[[pr.asyncio.Client], Awaitable[Any]], **options: Any
) -> Any:
    """Run *scenario* with a client; whatever the loop has to complain about is a failure."""
    complaints: list[Any] = []

    async def play() -> Any:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        more = PATIENT | options
        async with pr.asyncio.Client(broker.service_url, logger=QUIET, **more) as client:
            result = await asyncio.wait_for(scenario(client), LONGEST)
        gc.collect()
        return result

    result = asyncio.run(play())
    assert [] == complaints
    return result
