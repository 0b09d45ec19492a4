"""What ends a subscription, and how those who wait for it are told."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.pull.signals import Requests, awaiting_signals
from pulsar_retry.testing import MemoryBroker
from support.pull import workers
from support.pull.handling import SOON, Notes


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give an empty broker with one message."""
    memory = MemoryBroker()
    memory.send("orders", b"order")
    yield memory
    memory.close()


#: Where a handler runs: what it is made of, and the subscriber's options.
SHELLS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "threads": (lambda act: act, {}),
    "loop": (workers.awaiting, {}),
    "processes": (lambda act: act, {"workers": "processes", "concurrency": 1}),
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("act", "kind"), [(workers.leave, SystemExit), (workers.interrupt, KeyboardInterrupt)]
)
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


@pytest.mark.parametrize("shell", ["threads", "loop"])
def test_a_handler_that_ends_the_program_of_asyncio(memory: MemoryBroker, shell: str) -> None:
    """The event loop is the caller's: it goes on, and what awaits the end gets the error."""
    form, _ = SHELLS[shell]

    async def scenario() -> None:
        async with memory.asyncio_client() as client:
            subscriber = client.subscriber("orders", "billing", form(workers.leave))
            try:
                await subscriber.run()
            except SystemExit as error:
                raised.append(error.code)

    raised: list[Any] = []
    asyncio.run(scenario())
    assert ["no database"] == raised
    assert 1 == memory.backlog("orders", "billing")


# -- starting -------------------------------------------------------------------------------------


def test_what_the_broker_refuses(memory: MemoryBroker) -> None:
    """`start` raises it, and so do ``with``, `run` and `result`."""
    memory.faults.refuse_subscribe("orders", error=pulsar.AuthorizationError, times=3)
    client = memory.client()
    subscriber = client.subscriber("orders", "billing", Notes())
    with pytest.raises(pulsar.AuthorizationError):
        subscriber.start()
    with pytest.raises(pulsar.AuthorizationError):
        subscriber.result()
    with (
        pytest.raises(pulsar.AuthorizationError),
        client.subscriber("orders", "billing", Notes()),
    ):
        pytest.fail("there is nothing to be done in here")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscriber("orders", "billing", Notes()).run()


def test_what_the_broker_refuses_asyncio(memory: MemoryBroker) -> None:
    """The same, by both names of the error."""
    memory.faults.refuse_subscribe("orders", error=pulsar.ConsumerBusy, times=2)

    async def scenario() -> None:
        async with memory.asyncio_client() as client:
            alone: dict[str, Any] = {"consumer_type": pulsar.ConsumerType.Exclusive}
            with pytest.raises(pulsar.asyncio.PulsarException):
                await client.subscriber("orders", "billing", Notes(), **alone).start()
            with pytest.raises(pulsar.ConsumerBusy):
                async with client.subscriber("orders", "billing", Notes(), **alone):
                    pytest.fail("there is nothing to be done in here")

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [pulsar.Timeout, pulsar.ConnectError, pulsar.ServiceUnitNotReady])
def test_a_broker_that_is_away(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    """`start` returns after the first try, with a warning; it is tried on in the background."""
    memory.faults.refuse_subscribe("orders", error=error, times=4)
    notes = Notes()
    with caplog.at_level(logging.WARNING, "pulsar_retry"):
        subscriber = memory.client().subscriber("orders", "billing", notes).start()
    assert f"could not be opened, and will be tried again in 1 s: {error.__name__}" in caplog.text
    memory.clock.advance(1 + 2 + 4 + 8 - 0.5)
    assert (True, []) == (subscriber.running, notes.seen)
    memory.clock.advance(1)
    memory.join("orders", "billing")
    assert [b"order"] == notes.seen
    report = subscriber.stop()
    assert report is not None
    assert report.complete


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_namespace_that_is_not_there_yet(memory: MemoryBroker, kind: str) -> None:
    """A broker that starts has no namespaces for a moment, so only the fourth refusal counts."""
    memory.faults.refuse_subscribe("orders", error=pulsar.TopicNotFound, times=3)
    notes = Notes()

    async def scenario() -> None:
        async with memory.asyncio_client() as client:
            subscriber = client.subscriber("orders", "billing", notes)
            passing = asyncio.to_thread(memory.clock.advance, 1 + 2 + 4)
            await asyncio.gather(subscriber.start(), passing)
            await subscriber.stop()

    if kind == "sync":
        memory.client().subscriber("orders", "billing", notes).start().stop()
    else:
        asyncio.run(scenario())
    assert not memory.faults.pending()


def test_one_that_stays_away(memory: MemoryBroker) -> None:
    """What was not opened yet can be stopped; what is refused later ends it."""
    memory.faults.refuse_subscribe("orders", error=pulsar.Timeout, times=2)
    client = memory.client()
    report = client.subscriber("orders", "billing", Notes()).start().stop()
    assert report is not None
    assert (0, 0, True) == (report.acknowledged, report.abandoned, report.complete)
    memory.faults.refuse_subscribe("orders", error=pulsar.Timeout)
    memory.faults.refuse_subscribe("orders", error=pulsar.TopicNotFound, times=4)
    subscriber = client.subscriber("orders", "billing", Notes()).start()
    with pytest.raises(pulsar.TopicNotFound):
        subscriber.result(60)


@pytest.mark.parametrize("error", [pulsar.Timeout("no answer"), RuntimeError("no thread")])
def test_a_consumer_that_cannot_be_closed(
    memory: MemoryBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """The subscription ends with its report, and the log says why the consumer is open."""
    subscriber = memory.client().subscriber("orders", "billing", Notes()).start()
    memory.join("orders", "billing")
    with caplog.at_level(logging.WARNING, "pulsar_retry"), monkeypatch.context() as patch:
        patch.setattr(pr.Consumer, "close", workers.raising(error))
        report = subscriber.stop()
    assert report is not None
    assert (1, "stopped") == (report.acknowledged, subscriber.health.state)
    (line,) = caplog.records
    said = f"the consumer of the subscription 'billing' was not closed: {type(error).__name__}"
    assert line.getMessage().startswith(f"{said}: no ")
    facts = "persistent://public/default/orders", "billing"
    assert facts == (line.topic, line.subscription)  # type: ignore[attr-defined]


# -- being told -----------------------------------------------------------------------------------


def test_a_client_that_is_closed_first(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The subscription ends with an error that says why, as does the log."""
    client = memory.client()
    subscriber = client.subscriber("orders", "billing", print).start()
    client.close()
    why = "The client was closed before the subscriber was stopped"
    with pytest.raises(pulsar.AlreadyClosed) as raised:
        subscriber.result(SOON)
    assert [why] == raised.value.__notes__
    assert why in subscriber.health.reason
    assert why in caplog.text


def test_with_raises_what_nobody_was_told(memory: MemoryBroker) -> None:
    """At the end of a block that knows nothing of it; not twice, and not instead of its error."""
    client = memory.client()

    def ended() -> Any:
        policy = pr.RetryPolicy(stop_on=LookupError)
        handler = workers.raising(LookupError("no such table"))
        return client.subscriber("orders", "billing", handler, retry_policy=policy)

    with pytest.raises(LookupError), ended():
        memory.clock.advance(300)
    with ended() as subscriber, pytest.raises(LookupError):
        subscriber.result(300)
    with pytest.raises(RuntimeError, match="the block's"), ended():
        memory.clock.advance(300)
        raise RuntimeError("the block's")


def test_the_result_of_what_never_began(memory: MemoryBroker) -> None:
    """Is an error at once."""
    with pytest.raises(RuntimeError, match="was not started"):
        memory.client().subscriber("orders", "billing", Notes()).result()

    async def scenario() -> None:
        async with memory.asyncio_client() as client:
            with pytest.raises(RuntimeError, match="was not started"):
                await client.subscriber("orders", "billing", Notes()).result()

    asyncio.run(scenario())


# -- signals --------------------------------------------------------------------------------------

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("signals", "abandons"),
    [
        ([(TERM, 0), (TERM, 5), (TERM, 60)], False),
        ([(TERM, 0), (INT, 5)], False),
        ([(INT, 0), (TERM, 5)], False),
        ([(INT, 0), (INT, 0.1)], False),
        ([(INT, 0), (INT, 0.1), (INT, 3)], True),
        ([(INT, 0), (INT, 3)], True),
        ([(TERM, 0), (INT, 5), (INT, 9)], True),
    ],
)
def test_what_several_signals_ask_for(signals: list[tuple[int, float]], abandons: bool) -> None:
    """The first stops; only Ctrl-C pressed again abandons."""
    now, asked = [0.0], []
    requests = Requests(lambda *ask: asked.append(ask), "hand_back", 7, lambda: now[0])
    for number, at in signals:
        now[0] = at
        requests.told(number)
    assert [("hand_back", 7)] + [("abandon", 0)] * abandons == asked


def test_a_signal_that_does_not_interrupt_the_wait_is_seen() -> None:
    """One that comes just before the main thread blocks wakes it no more than one of a thread."""
    ended = threading.Event()
    late = threading.Timer(SOON, ended.set)
    late.start()
    before = [signal.getsignal(each) for each in (TERM, INT)]
    try:
        with awaiting_signals(ended) as next_signal:
            for number in (TERM, INT):
                sender = threading.Thread(target=_send_to_itself, args=(number,))
                threading.Timer(0.05, sender.start).start()
                assert number == next_signal()
                sender.join()
            ended.set()
            assert next_signal() is None
    finally:
        late.cancel()
    assert before == [signal.getsignal(each) for each in (TERM, INT)]


def test_it_is_seen_by_all_who_run_on_a_loop(memory: MemoryBroker) -> None:
    """They end, and the handlers are as before."""
    before = [signal.getsignal(each) for each in (TERM, INT)]

    async def scenario() -> list[str]:
        async with memory.asyncio_client() as client:
            subscribers = [client.subscriber("orders", name, Notes()) for name in "ab"]
            running = [asyncio.ensure_future(each.run()) for each in subscribers]
            while not all(each.running for each in subscribers):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            await asyncio.to_thread(_send_to_itself, TERM)
            return [(await each).mode for each in running]

    assert ["drain", "drain"] == asyncio.run(scenario())
    assert before == [signal.getsignal(each) for each in (TERM, INT)]


def _send_to_itself(number: int) -> None:
    signal.pthread_kill(threading.get_ident(), number)
