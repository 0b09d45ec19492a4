"""Waiting for an inbox on an event loop: whatever is cancelled, no message is lost or given twice.

The consumer is a fake that keeps pulsar-client's promises; the real one is in
tests/integration/asyncio/test_asyncio.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_retry.asyncio.arrivals import Arrivals
from pulsar_retry.asyncio.bridge import Bridge
from pulsar_retry.consumer.inbox import LOOK_INTERVAL, Inbox

OK, CLOSED = _pulsar.Result.Ok, _pulsar.Result.AlreadyClosed


class Payload(bytes):
    """A raw message."""

    def length(self) -> int:
        """Return its bytes."""
        return len(self)

    def topic_name(self) -> str:
        """Return its topic."""
        return "topic"

    def message_id(self) -> pulsar.MessageId:
        """Return an id; ids grow with the payloads."""
        return pulsar.MessageId(-1, 1, int(self), -1)._msg_id


class FakeConsumer:
    """One of pulsar-client's consumers."""

    def __init__(self) -> None:
        self.queue: deque[Payload] = deque()
        self.waiting: deque[Callable[[Any, Any], None]] = deque()

    def deliver(self, message: Payload) -> None:
        """Let a message arrive."""
        if self.waiting:
            self.waiting.popleft()(OK, message)
        else:
            self.queue.append(message)

    def receive(self, timeout: int) -> Payload:
        """Return what is there: nothing here may wait."""
        assert timeout <= 0
        if not self.queue:
            raise pulsar.Timeout("nothing")
        return self.queue.popleft()

    def receive_async(self, callback: Callable[[Any, Any], None]) -> None:
        """Call back when a message is there."""
        if self.queue:
            callback(OK, self.queue.popleft())
        else:
            self.waiting.append(callback)

    def close(self) -> None:
        """End what waits."""
        while self.waiting:
            self.waiting.popleft()(CLOSED, None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["main", "retry"]), st.integers(1, 5)),
        st.tuples(st.just("receive"), st.sampled_from([None, 0.0, 0.0005])),
        st.tuples(st.just("batch"), st.sampled_from([(3, 0, 0), (0, 20, 1), (2, 0, 1)])),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("turn"), st.integers(1, 4)),
    ),
    max_size=40,
)


class Play:
    """What happens, step by step, and what came of it."""

    def __init__(self, *, two: bool) -> None:
        self.main, self.retry = FakeConsumer(), FakeConsumer()
        inbox = Inbox(self.main, self.retry if two else None, lambda _: None)
        self.arrivals = Arrivals(inbox, Bridge())
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.tasks: list[asyncio.Task[Any]] = []

    async def step(self, kind: str, argument: Any) -> None:
        """Do one thing."""
        if kind in {"main", "retry"}:
            for _ in range(argument):
                self.deliver(self.main if kind == "main" else self.retry)
        elif kind == "receive":
            self.tasks.append(asyncio.create_task(self.arrivals.receive(argument)))
        elif kind == "batch":
            self.tasks.append(asyncio.create_task(self.arrivals.receive_batch(argument)))
        elif kind == "cancel" and self.tasks:
            self.tasks[argument % len(self.tasks)].cancel()
        else:
            for _ in range(argument):
                await asyncio.sleep(0)

    def deliver(self, consumer: FakeConsumer) -> None:
        """Let one more message arrive."""
        message = Payload(b"%05d" % len(self.sent))
        self.sent.append(message)
        consumer.deliver(message)

    async def end(self) -> None:
        """See that nobody waits for what is there, then receive what is left."""
        for _ in range(50):
            await asyncio.sleep(0)
        if not all(task.done() for task in self.tasks):
            assert not self.main.queue
            assert not self.retry.queue
            assert not self.arrivals.inbox.holds()
        for task in self.tasks:
            task.cancel()
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            if not isinstance(ended, BaseException):
                self.received += ended if isinstance(ended, list) else [ended]
        with pytest.raises(pulsar.Timeout):
            while True:
                self.received.append(await self.arrivals.receive(0.01))


@settings(deadline=None)
@given(STEPS, st.booleans())
def test_each_message_is_received_once(steps: list[tuple[str, Any]], two: bool) -> None:
    """In any order of arrivals, receives, time-outs and cancellations."""

    async def play() -> Play:
        play = Play(two=two)
        for kind, argument in steps:
            if two or kind != "retry":
                await play.step(kind, argument)
        await play.end()
        return play

    play_ = asyncio.run(play())
    assert play_.sent == sorted(play_.received)


@pytest.mark.parametrize("by_the_broker", [False, True])
def test_closing_ends_all_who_wait(by_the_broker: bool) -> None:
    """However many there are, and whoever comes later."""

    async def play() -> None:
        main = FakeConsumer()
        arrivals = Arrivals(Inbox(main, None, lambda _: None), Bridge())
        waiting = [asyncio.create_task(arrivals.receive(None)) for _ in range(5)]
        await asyncio.sleep(0.01)
        if by_the_broker:
            main.close()
        else:
            arrivals.close()
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 120)
        assert {True} == {isinstance(each, pulsar.AlreadyClosed) for each in ended}
        with pytest.raises(pulsar.AlreadyClosed):
            await arrivals.receive(None)

    asyncio.run(play())


def test_receives_that_a_closed_loop_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are collected without a word."""
    words: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", words.append)
    loop = asyncio.new_event_loop()

    async def wait() -> list[asyncio.Task[Any]]:
        arrivals = Arrivals(Inbox(FakeConsumer(), None, lambda _: None), Bridge())
        receives = [asyncio.create_task(arrivals.receive(None)) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        return receives

    receives = loop.run_until_complete(wait())
    loop.close()
    for each in receives:
        each._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what is tested
        each.get_coro().close()  # as the collector does it

    assert [] == words


def test_what_comes_for_a_closed_loop_stays() -> None:
    """Nobody is told, nothing is raised, and the message is there."""
    main = FakeConsumer()
    inbox = Inbox(main, None, lambda _: None)

    async def play() -> Arrivals:
        arrivals = Arrivals(inbox, Bridge())
        with pytest.raises(pulsar.Timeout):
            await arrivals.receive(0.001)
        return arrivals

    arrivals = asyncio.run(play())
    main.deliver(Payload(b"late"))

    item = inbox.take()
    assert item is not None
    assert b"late" == item.message
    assert arrivals.fast_receive is None


def test_waiting_tasks_are_served_in_order() -> None:
    """A look for overlooked messages does not change who waits first."""

    async def play() -> list[str]:
        main = FakeConsumer()
        arrivals, order = Arrivals(Inbox(main, None, lambda _: None), Bridge()), []

        async def one(name: str) -> None:
            await arrivals.receive(None)
            order.append(name)

        first = asyncio.create_task(one("first"))
        await asyncio.sleep(LOOK_INTERVAL / 2)
        second = asyncio.create_task(one("second"))
        await asyncio.sleep(LOOK_INTERVAL * 0.75)
        main.deliver(Payload(b"1"))
        await asyncio.sleep(LOOK_INTERVAL / 4)
        main.deliver(Payload(b"2"))
        await asyncio.gather(first, second)
        arrivals.close()
        return order

    assert ["first", "second"] == asyncio.run(play())


def test_a_waiting_task_gets_what_pulsar_client_overlooks() -> None:
    """The message lies in the queue, although an asynchronous receive waits."""

    async def play() -> bytes:
        main = FakeConsumer()
        arrivals = Arrivals(Inbox(main, None, lambda _: None, ordered=False), Bridge())
        task = asyncio.create_task(arrivals.receive(None))
        await asyncio.sleep(0.05)
        main.queue.append(Payload(b"1"))
        message = await asyncio.wait_for(task, 120)
        arrivals.close()
        return bytes(message)

    assert asyncio.run(play()) == b"1"
