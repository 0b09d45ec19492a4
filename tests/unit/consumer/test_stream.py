"""The stream of a topic and its retry topic, and the thread that waits for it.

The two consumers are fakes that keep pulsar-client's promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pulsar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_retry.asyncio.arrivals import Arrivals
from pulsar_retry.asyncio.bridge import Bridge
from pulsar_retry.consumer.stream import Fetcher, Stream
from pulsar_retry.runtime.clock import SYSTEM, Clock
from support.waiting import eventually

UNLIMITED = -1


@attrs.frozen
class Message:
    """A message of the topic ("m") or a letter ("l")."""

    kind: str
    number: int
    size: int = 1

    def length(self) -> int:
        """Return the bytes of the payload."""
        return self.size


class FakeConsumer:
    """One of pulsar-client's consumers."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._numbers = itertools.count()
        self._queue: list[Message] = []
        self._changed = threading.Condition()
        self._closed = False
        self.asked = 0

    def deliver(self, count: int = 1, size: int = 1) -> list[Message]:
        """Let messages arrive, and return them."""
        messages = [Message(self._kind, next(self._numbers), size) for _ in range(count)]
        with self._changed:
            self._queue += messages
            self._changed.notify_all()
        return messages

    def receive(self, timeout: int = 1 << 20) -> Message:
        """Return the next message in *timeout* milliseconds."""
        self.asked += 1
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed, max(0, timeout) / 1000)
            if self._closed:
                raise pulsar.AlreadyClosed("closed")
            if not self._queue:
                raise pulsar.Timeout("nothing")
            return self._queue.pop(0)

    def close(self) -> None:
        """Close, and end what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class StandingClock(Clock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.at


class Rig:
    """A stream with its two fakes, received from as `Consumer.receive` does it."""

    def __init__(self, *, letters: bool = True, polls: bool = True, clock: Clock = SYSTEM) -> None:
        self.main, self.retry = FakeConsumer("m"), FakeConsumer("l")
        retry = self.retry if letters else None
        self.stream = Stream(self.main, retry, clock=clock, polls=polls)
        self.clock = clock

    def receive(self) -> Message:
        """Receive what is there."""
        stream = self.stream
        if (fast := stream.fast_receive) is not None and self.clock.monotonic() < stream.turn_ends:
            with contextlib.suppress(pulsar.Timeout):
                return fast(0)
        return stream.receive(0)

    def close(self) -> None:
        """Close both consumers."""
        self.retry.close()
        self.main.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Give a stream, and close its consumers afterwards."""
    rig = Rig()
    yield rig
    rig.close()


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_nothing_there_is_a_timeout(rig: Rig, timeout: float) -> None:
    """As pulsar-client's; and the consumer knows that the topic had nothing."""
    with pytest.raises(pulsar.Timeout):
        rig.stream.receive(timeout)
    assert rig.stream.ran_dry


def test_both_sources_get_their_turn() -> None:
    """While both are full, each is read for a turn."""
    clock = StandingClock()
    rig = Rig(clock=clock)
    rig.main.deliver(50)
    rig.retry.deliver(50)
    kinds = ""
    for _ in range(4):
        kinds += "".join(rig.receive().kind for _ in range(2))
        clock.at += 0.003
    assert kinds in {"llmmllmm", "mmllmmll"}


def test_the_topic_alone_is_received_directly() -> None:
    """Until the retry topic's turn comes: a letter does not wait for the topic to run dry."""
    clock = StandingClock()
    rig = Rig(clock=clock)
    rig.main.deliver(50)
    rig.receive()
    asked = rig.retry.asked
    for _ in range(10):
        assert rig.receive().kind == "m"
    assert asked == rig.retry.asked
    rig.retry.deliver()
    clock.at += 0.06
    assert rig.receive().kind == "l"


@pytest.mark.parametrize("kind", ["main", "retry"])
@pytest.mark.parametrize("timeout", [60, None])
def test_who_waits_gets_what_comes(rig: Rig, kind: str, timeout: float | None) -> None:
    """From either source."""
    source: FakeConsumer = getattr(rig, kind)
    late = threading.Timer(0.1, source.deliver)
    late.start()
    message = rig.stream.receive(timeout)
    late.join()
    assert message == Message("m" if kind == "main" else "l", 0)


def test_a_quiet_stream_polls_seldom() -> None:
    """The longer no letter has come, the longer are the waits, up to 50 ms."""
    clock = StandingClock()
    rig = Rig(clock=clock)
    waits: list[int] = []

    def receive(timeout: int) -> Message:
        waits.append(timeout)
        clock.at += max(0, timeout) / 1000
        raise pulsar.Timeout("nothing")

    rig.retry.deliver()
    rig.receive()
    rig.main.receive = receive  # type: ignore[method-assign]
    with pytest.raises(pulsar.Timeout):
        rig.stream.receive(10)
    waits = [each for each in waits if each > 0]
    assert (1, 50) == (waits[0], max(waits))
    assert 300 > len(waits)


def test_a_closed_consumer_ends_all_waits(rig: Rig) -> None:
    """Without a limit too."""
    late = threading.Timer(0.05, rig.close)
    late.start()
    with pytest.raises(pulsar.AlreadyClosed):
        rig.stream.receive(None)
    late.join()


def test_what_was_given_back_comes_first(rig: Rig) -> None:
    """In its order, once, unless it is dropped."""
    messages = rig.main.deliver(4)
    taken = [rig.receive() for _ in range(3)]
    rig.stream.give_back(taken)
    assert messages == [rig.receive() for _ in range(4)]
    rig.stream.give_back(taken)
    rig.stream.drop(lambda raw: raw.number != 1)
    assert messages[1] == rig.receive()
    with pytest.raises(pulsar.Timeout):
        rig.receive()


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_ends_at_its_limits(rig: Rig) -> None:
    """What is over waits for the next call; only a first message may be larger than the limit."""
    rig.main.deliver(4, size=40)
    rig.main.deliver(1, size=400)
    rig.retry.deliver(3)
    numbers = [len(rig.stream.receive_batch((2, 100, UNLIMITED))) for _ in range(3)]
    batches = list(iter(lambda: rig.stream.receive_batch((9, 100, 1)), []))
    assert [2, 2, 2] == numbers
    assert 8 == 6 + sum(map(len, batches))


def test_a_batch_ends_in_time(rig: Rig) -> None:
    """Whatever there is by then is returned, be it nothing."""
    assert [] == rig.stream.receive_batch((10, UNLIMITED, 1))
    messages = rig.main.deliver()
    assert messages == rig.stream.receive_batch((10, UNLIMITED, 100))


def test_an_interrupted_batch_loses_nothing(rig: Rig) -> None:
    """What it had is there for the next call."""
    messages = rig.main.deliver(3)
    bare = rig.main.receive

    def receive(timeout: int) -> Message:
        if timeout > 0:
            raise KeyboardInterrupt
        return bare(timeout)

    rig.main.receive = receive  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rig.stream.receive_batch((10, UNLIMITED, UNLIMITED))
    assert messages == [rig.receive() for _ in range(3)]


# -- the thread -----------------------------------------------------------------------------------


@pytest.mark.parametrize("polls", [True, False])
def test_the_thread_waits_while_somebody_wants_a_message(polls: bool) -> None:
    """It brings one message, and ends with the consumer."""
    rig, ended = Rig(letters=False, polls=polls), threading.Event()
    fetcher = Fetcher(rig.stream, is_wanted=lambda: True, ended=ended.set, clock=SYSTEM)
    for _ in range(2):
        ended.clear()
        fetcher.ask()
        messages = rig.main.deliver()
        assert ended.wait(60)
        assert messages == [rig.stream.take_returned()]
    fetcher.ask()
    rig.close()
    fetcher.close()
    assert isinstance(fetcher.error, pulsar.AlreadyClosed)
    assert fetcher._thread is None


def test_the_thread_takes_nothing_that_nobody_wants() -> None:
    """A message that comes later stays in pulsar-client's queue."""
    rig, ended, wanted = Rig(), threading.Event(), [True]
    fetcher = Fetcher(rig.stream, is_wanted=lambda: wanted[0], ended=ended.set, clock=SYSTEM)
    fetcher.ask()
    wanted[0] = False
    assert ended.wait(60)
    messages = rig.main.deliver()
    assert rig.stream.take_returned() is None
    assert messages == [rig.receive()]
    eventually(lambda: fetcher._thread is None)


class LateWait(threading.Condition):
    """A condition whose first wait times out, and calls *meanwhile* before it returns."""

    meanwhile: Any = None

    def wait(self, timeout: float | None = None) -> bool:
        if self.meanwhile is None:
            return super().wait(timeout)
        meanwhile, self.meanwhile = self.meanwhile, None
        self.release()
        meanwhile()
        self.acquire()
        return False


def test_the_thread_that_is_asked_as_it_ends_goes_on() -> None:
    """Otherwise nobody would wait for messages any more."""
    rig, ended, asked = Rig(), threading.Event(), threading.Event()
    fetcher = Fetcher(rig.stream, is_wanted=lambda: True, ended=ended.set, clock=SYSTEM)
    fetcher._changed = condition = LateWait()

    def ask() -> None:
        rig.stream.take_returned()
        ended.clear()
        fetcher.ask()
        asked.set()

    condition.meanwhile = ask
    fetcher.ask()
    rig.main.deliver()
    assert asked.wait(60)
    rig.main.deliver()
    assert ended.wait(20)


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
    """What happens on an event loop, step by step, and what came of it."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.fetchers: list[Fetcher] = []
        self.arrivals = Arrivals(self, Bridge())  # type: ignore[arg-type]
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.tasks: list[asyncio.Task[Any]] = []

    @property
    def stream(self) -> Stream:
        """The stream, as of a consumer."""
        return self.rig.stream

    def fetcher(self, is_wanted: Any, ended: Any) -> Fetcher:
        """Make the thread, as a consumer does."""
        made = Fetcher(self.stream, is_wanted=is_wanted, ended=ended, clock=SYSTEM)
        self.fetchers.append(made)
        return made

    async def step(self, kind: str, argument: Any) -> None:
        """Do one thing."""
        if kind in {"main", "retry"}:
            self.sent += getattr(self.rig, kind).deliver(argument)
        elif kind == "receive":
            self.tasks.append(asyncio.create_task(self.arrivals.receive(argument)))
        elif kind == "batch":
            self.tasks.append(asyncio.create_task(self.arrivals.receive_batch(argument)))
        elif kind == "cancel" and self.tasks:
            self.tasks[argument % len(self.tasks)].cancel()
        else:
            for _ in range(argument):
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Receive what is left, and close."""
        for task in self.tasks:
            task.cancel()
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            if not isinstance(ended, BaseException):
                self.received += ended if isinstance(ended, list) else [ended]
        while len(self.received) < len(self.sent):
            self.received.append(await self.arrivals.receive(60))
        waiting = [asyncio.create_task(self.arrivals.receive(None)) for _ in range(3)]
        await asyncio.sleep(0.001)
        self.rig.close()
        ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert {True} == {isinstance(each, pulsar.AlreadyClosed) for each in ends}
        for each in self.fetchers:
            each.close()


@settings(deadline=None)
@given(STEPS)
def test_each_message_is_received_once(steps: list[tuple[str, Any]]) -> None:
    """In any order of arrivals, receives, time-outs and cancellations; closing ends all waits."""

    async def play() -> Play:
        play = Play()
        for kind, argument in steps:
            await play.step(kind, argument)
        await play.end()
        return play

    ended = asyncio.run(play())
    assert sorted(ended.sent, key=str) == sorted(ended.received, key=str)


def test_a_paused_loop_receives_nothing() -> None:
    """A seek begins when the thread does not wait any more; the receives go on after it."""

    async def play() -> None:
        play = Play()
        waiting = asyncio.create_task(play.arrivals.receive(None))
        await asyncio.sleep(0.01)
        async with play.arrivals.paused():
            messages = play.rig.main.deliver()
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert messages == [await waiting]
        await play.end()

    asyncio.run(play())


def test_receives_that_a_closed_loop_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are collected without a word, and the next message stays."""
    words: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", words.append)
    loop = asyncio.new_event_loop()

    async def wait() -> tuple[Play, list[asyncio.Task[Any]]]:
        play = Play()
        receives = [asyncio.create_task(play.arrivals.receive(None)) for _ in range(3)]
        await asyncio.sleep(0.01)
        return play, receives

    play, receives = loop.run_until_complete(wait())
    loop.close()
    for each in receives:
        each._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what is tested
        each.get_coro().close()  # type: ignore[union-attr]  # as the collector does it
    messages = play.rig.main.deliver()
    assert messages == [play.rig.receive()]
    play.rig.close()
    for fetcher in play.fetchers:
        fetcher.close()
    assert [] == words
