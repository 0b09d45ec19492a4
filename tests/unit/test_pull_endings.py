"""What ends a subscription, and how those who wait for it are told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import workers
from handling import SOON

from pulsar_retry.testing import MemoryBroker


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give an empty broker with one message."""
    memory = MemoryBroker()
    memory.send("orders", b"order")
    yield memory
    memory.close()


def leave(_message: Any) -> None:
    """End the program, as far as the handler knows."""
    sys.exit("no database")


def interrupt(_message: Any) -> None:
    """Do what Ctrl-C does."""
    raise KeyboardInterrupt


#: Where a handler runs: what it is made of, and the subscriber's options.
SHELLS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "threads": (lambda act: act, {}),
    "loop": (workers.awaiting, {}),
    "an awaitable on threads": (lambda act: workers.hiding(workers.awaiting(act)), {}),
    "processes": (lambda act: act, {"workers": "processes", "concurrency": 1}),
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("act", "kind"), [(leave, SystemExit), (interrupt, KeyboardInterrupt)])
def test_a_handler_that_ends_the_program(
    memory: MemoryBroker, shell: str, act: Callable[[Any], Any], kind: type[BaseException]
) -> None:
    """It ends the subscription: `result` raises the same, and the message is there for others."""
    form, options = SHELLS[shell]
    subscriber = memory.client().subscriber("orders", "billing", form(act), **options).start()
    with pytest.raises(kind) as raised:
        subscriber.result(SOON)
    assert kind is KeyboardInterrupt or "no database" == raised.value.code
    assert not subscriber.running
    assert 1 == memory.backlog("orders", "billing")
    assert not memory.retry_letters("orders", "billing")
    seen = []
    with memory.client().subscriber("orders", "billing", lambda m: seen.append(m.data())):
        memory.join("orders", "billing")
    assert [b"order"] == seen


@pytest.mark.parametrize("shell", ["threads", "loop", "an awaitable on threads"])
def test_a_handler_that_ends_the_program_of_asyncio(memory: MemoryBroker, shell: str) -> None:
    """The event loop is the caller's: it goes on, and what awaits the end gets the error."""
    form, _ = SHELLS[shell]

    async def scenario() -> None:
        async with memory.asyncio_client() as client:
            subscriber = client.subscriber("orders", "billing", form(leave))
            try:
                await subscriber.run()
            except SystemExit as error:
                raised.append(error.code)

    raised: list[Any] = []
    asyncio.run(scenario())
    assert ["no database"] == raised
    assert 1 == memory.backlog("orders", "billing")
