"""The hand-off: publish a letter, wait for its receipt, then acknowledge the original."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import _pulsar
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.sending import Flight, LetterFuture
from pulsar_retry.letters.letter import Letter
from pulsar_retry.runtime.clock import Clock
from support.waiting import eventually

RETRY = "persistent://public/default/orders-billing-RETRY"
OK = _pulsar.Result.Ok

LETTER = Letter(RETRY, {"RECONSUMETIMES": "1"}, delay=5.0)


def original(content: bytes = b"order", **parts: Any) -> Any:
    """Return a raw message as it was received."""
    builder = _pulsar.MessageBuilder()
    builder.content(content)
    for name, value in parts.items():
        getattr(builder, name)(*([] if value is None else [value]))
    return builder.build()


class World:
    """pulsar-client's producers and the consumer's acknowledgement: what is asked, in order.

    Answers are kept back until `answer`, as a broker's are.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.published: list[Any] = []
        self.asked: list[tuple[str, Callable[..., None]]] = []
        self.created = 0
        self.send_raises: BaseException | None = None

    def __call__(self, _client: Any, _topic: str, **_options: Any) -> Any:
        """Stand for `pulsar.Client.create_producer`."""
        self.created += 1
        self._producer = self
        return self

    def producer_name(self) -> str:
        """Return the producer's name."""
        return "letters-1"

    def send_async(self, message: Any, callback: Callable[..., None]) -> None:
        """Publish."""
        if self.send_raises is not None:
            raise self.send_raises
        self.events.append("publish")
        self.published.append(message)
        self.asked.append(("receipt", lambda result: callback(result, None)))

    def acknowledge_async(self, _message: Any, callback: Callable[..., None]) -> None:
        """Acknowledge."""
        self.events.append("ack")
        self.asked.append(("acknowledged", callback))

    def answer(self, what: str, result: Any = OK) -> None:
        """Let the broker answer the oldest question."""
        kind, callback = self.asked.pop(0)
        assert kind == what
        self.events.append(f"{what}: {result.name}")
        callback(result)

    def close(self) -> None:
        """Close the producer."""
        self.events.append("close")


class Rig:
    """A hand_off with room for two letters."""

    def __init__(self) -> None:
        self.world = World()
        self.back: list[Any] = []
        self.hand_off = HandOff(
            self.world,  # type: ignore[arg-type]
            pulsar.schema.BytesSchema(),
            max_pending=2,
            send_timeout=0.01,
            dead_letter_subscription=None,
            come_back=self.come_back,
            handed_on=lambda _: None,
            timer=self,  # type: ignore[arg-type]
        )

    def check_later(self, _owner: Any, _delay: float) -> None:
        """Stand for the timer that looks after letters without a receipt."""

    def come_back(self, raw: Any) -> None:
        """Take note of a message that is to be redelivered."""
        self.world.events.append("come back")
        self.back.append(raw)

    def flight(self, raw: Any = None, letter: Letter = LETTER) -> Flight:
        """Return a letter to hand on."""
        raw, future = raw or original(), LetterFuture()
        return Flight(self.hand_off, raw, self.world, letter, raw.length(), future)

    def hand_on(self, raw: Any = None, letter: Letter = LETTER) -> Future[None]:
        """Hand a message on."""
        return self.hand_off.hand_on(self.flight(raw, letter))

    def permits(self) -> int:
        """Return how many more letters may be sent."""
        return self.hand_off.permits._free


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Give a hand_off whose producers are fakes."""
    rig = Rig()
    monkeypatch.setattr(
        "pulsar_retry.consumer.handoff.producers.BareClient.create_producer", rig.world
    )
    return rig


def test_a_message_is_acknowledged_after_its_letter_is_out(rig: Rig) -> None:
    """Publish, receipt, ack, and only then is the caller told."""
    future = rig.hand_on()
    assert ["publish"] == rig.world.events
    rig.world.answer("receipt")
    assert ["publish", "receipt: Ok", "ack"] == rig.world.events
    assert not future.done()
    rig.world.answer("acknowledged")
    assert (None, []) == (future.result(0), rig.back)


def test_an_unpublished_message_comes_back(rig: Rig) -> None:
    """It is not acknowledged; the caller learns the topic and pulsar-client's error."""
    raw = original()
    future = rig.hand_on(raw)
    rig.world.answer("receipt", _pulsar.Result.MessageTooBig)
    error = future.exception(0)
    assert (pr.LetterPublishError, RETRY) == (type(error), getattr(error, "topic", None))
    assert pulsar.MessageTooBig is type(error.__cause__)
    assert [raw] == rig.back
    assert ["publish", "receipt: MessageTooBig", "come back"] == rig.world.events


def test_an_unacknowledged_message_comes_back(rig: Rig) -> None:
    """Its letter is out, so there will be two; the error says so."""
    future = rig.hand_on()
    rig.world.answer("receipt")
    rig.world.answer("acknowledged", _pulsar.Result.ConnectError)
    error = future.exception(0)
    assert (pr.AcknowledgeError, pulsar.ConnectError) == (type(error), type(error.__cause__))
    assert 1 == len(rig.back)


@pytest.mark.parametrize(
    ("result", "producers"),
    [("TopicTerminated", 2), ("ProducerFenced", 2), ("AlreadyClosed", 2), ("Timeout", 1)],
)
def test_a_producer_that_is_gone_is_made_again(rig: Rig, result: str, producers: int) -> None:
    """After some errors it never works again; after others it does."""
    rig.hand_on()
    rig.world.answer("receipt", getattr(_pulsar.Result, result))
    rig.hand_on()
    assert producers == rig.world.created


def test_a_publish_that_raises_is_a_failure(rig: Rig) -> None:
    """Whatever it raises: the message comes back, and the future tells."""
    rig.world.send_raises = TypeError("no such thing")
    error = rig.hand_on().exception(0)
    assert (pr.LetterPublishError, TypeError) == (type(error), type(error.__cause__))
    assert (1, 2) == (len(rig.back), rig.permits())


def test_a_producer_that_cannot_be_made_is_a_failure(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error comes out of the future, unwrapped."""

    def refuse(*_: Any, **__: Any) -> None:
        raise pulsar.AuthorizationError("may not produce")

    monkeypatch.setattr(
        "pulsar_retry.consumer.handoff.producers.BareClient.create_producer", refuse
    )
    error = rig.hand_on().exception(0)
    assert (pr.LetterPublishError, pulsar.AuthorizationError) == (
        type(error),
        type(error.__cause__),
    )
    assert (1, 2) == (len(rig.back), rig.permits())


@pytest.mark.parametrize("result", ["Ok", "MessageTooBig"])
@pytest.mark.parametrize("raised", [ValueError("oops"), SystemExit(3), KeyboardInterrupt()])
def test_a_callers_callback_cannot_reach_pulsar_client(
    rig: Rig, raised: BaseException, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception there would end the process; it is logged, and the hand-off goes on."""

    def broken(_future: Future[None]) -> None:
        raise raised

    future = rig.hand_on()
    future.add_done_callback(broken)
    rig.world.answer("receipt", getattr(_pulsar.Result, result))
    if result == "Ok":
        rig.world.answer("acknowledged")
    assert (True, 2, 1) == (future.done(), rig.permits(), len(caplog.records))


def test_a_letter_on_its_way_cannot_be_called_back(rig: Rig) -> None:
    """Cancelling would hide what becomes of it."""
    future = rig.hand_on()
    assert (False, False) == (future.cancel(), future.cancelled())


def test_letters_in_flight_are_bounded(rig: Rig) -> None:
    """The third of two waits until one has ended."""
    rig.hand_on()
    rig.hand_on()
    assert 0 == rig.permits()
    third = threading.Thread(target=rig.hand_on, daemon=True)
    third.start()
    eventually(lambda: rig.hand_off.permits._waiting)
    rig.world.answer("receipt")
    assert ["publish", "publish"] == [each for each in rig.world.events if each == "publish"]
    rig.world.asked.append(rig.world.asked.pop(0))  # the second receipt can wait
    rig.world.answer("acknowledged")
    third.join(120)
    eventually(lambda: rig.world.events.count("publish") == 3)


def test_what_must_not_block_is_handed_on_with_a_producer_and_room(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another thread does it: pulsar-client's threads and event loops must not wait."""
    left: list[Any] = []
    monkeypatch.setattr(rig.hand_off._worker, "submit", lambda task: left.append(task) or True)
    rig.hand_off.hand_on_elsewhere(rig.flight())
    assert (1, []) == (len(left), rig.world.events)
    left.pop()()
    rig.hand_off.hand_on_elsewhere(rig.flight())
    assert ([], 2) == (left, rig.world.events.count("publish"))
    rig.hand_off.hand_on_elsewhere(rig.flight())
    assert (1, 2) == (len(left), rig.world.events.count("publish"))


def test_a_stopped_router_takes_nothing_more(rig: Rig) -> None:
    """And keeps no room for it."""
    rig.hand_off.stop()
    with pytest.raises(pr.ConsumerClosedError):
        rig.hand_on()
    assert (2, []) == (rig.permits(), rig.world.events)


@pytest.mark.parametrize("way", ["close", "give up"])
def test_after_its_end_nobody_publishes_alone(rig: Rig, way: str) -> None:
    """The threads of a hand-off end with it, though its object may live on."""
    if way == "close":
        rig.hand_off.close(math.inf)
    else:
        rig.hand_off.give_up()
    with pytest.raises(pr.ConsumerClosedError):
        rig.hand_off._alone.add([rig.flight()])


def test_stopping_wakes_whoever_waits_for_room(rig: Rig) -> None:
    """A caller that is blocked when the consumer closes learns it."""
    rig.hand_on()
    rig.hand_on()
    errors: list[Exception] = []

    def third() -> None:
        try:
            rig.hand_on()
        except pr.ConsumerClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=third, daemon=True)
    thread.start()
    rig.hand_off.stop()
    rig.world.answer("receipt")
    rig.world.answer("receipt")
    rig.world.answer("acknowledged")
    rig.world.answer("acknowledged")
    rig.hand_off.drain()
    thread.join(120)
    assert [pr.ConsumerClosedError] == [type(error) for error in errors]


def test_draining_waits_for_letters_in_flight(rig: Rig) -> None:
    """A letter that ends meanwhile is waited for, and its room is there again."""
    future = rig.hand_on()
    rig.world.answer("receipt")
    drained: list[int] = []
    thread = threading.Thread(target=lambda: drained.append(rig.hand_off.drain()), daemon=True)
    thread.start()
    rig.world.answer("acknowledged")
    thread.join(120)
    assert ([0], True, 2) == (drained, future.done(), rig.permits())


def test_draining_does_not_wait_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the send time-out and two seconds, what is left is counted."""
    rig.hand_on()
    now = iter([0.0, *[100.0] * 10])
    monkeypatch.setattr(Clock, "monotonic", lambda _: next(now))
    assert (1, 1) == (rig.hand_off.drain(), rig.permits())


# -- letters without a receipt --------------------------------------------------------------------


def test_giving_up_before_there_is_a_producer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making one may take longer than a letter may: looking after the others must go on."""
    checks: list[BaseException | None] = []

    def slow(*_: Any, **__: Any) -> None:
        with monkeypatch.context() as late:
            late.setattr(Clock, "monotonic", lambda _: 1e12)
            try:
                rig.hand_off.check()
            except Exception as error:
                checks.append(error)
            else:
                checks.append(None)
        raise pulsar.Timeout("too slow")

    monkeypatch.setattr("pulsar_retry.consumer.handoff.producers.BareClient.create_producer", slow)
    future = rig.hand_on()
    assert [None] == checks
    assert (pr.LetterPublishError, 2, 1) == (
        type(future.exception(0)),
        rig.permits(),
        len(rig.back),
    )


def test_a_slow_acknowledgement_is_not_a_lost_producer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letter is out: the producer works, and the error says which of the two is missing."""
    future = rig.hand_on()
    rig.world.answer("receipt")
    monkeypatch.setattr(Clock, "monotonic", lambda _: 1e12)
    rig.world.close_async = lambda _callback: rig.world.events.append("close")
    rig.hand_off.check()
    assert pr.AcknowledgeError is type(future.exception(0))
    assert "close" not in rig.world.events


def test_a_letter_like_a_refused_one_is_answered_at_once(rig: Rig) -> None:
    """Whatever else goes out alone meanwhile: nothing is sent, and nothing waits."""
    flight = rig.flight()
    rig.hand_off.hand_on(flight)
    rig.world.answer("receipt", _pulsar.Result.Timeout)
    refused = flight.outlet.refused(flight, Clock().monotonic())
    assert refused is rig.hand_on().exception(0)
    assert (1, 2) == (rig.world.events.count("publish"), rig.permits())


def test_another_try_has_all_its_time(rig: Rig) -> None:
    """Opening its producer can take long; the first try's time is over already."""
    flight = rig.flight()
    rig.hand_off.hand_on(flight)
    assert flight.deadline < math.inf
    assert flight.anew().deadline == math.inf


def test_a_flight_ends_once(rig: Rig) -> None:
    """Whatever comes after its end: an outcome, a time-out, or the end of its producer."""
    future = rig.hand_on()
    (flight,) = rig.hand_off.flights
    rig.hand_off.finish([flight, flight])
    rig.hand_off.finish([flight], pulsar.Timeout("late"))
    assert (None, [], 2) == (future.result(0), rig.back, rig.permits())


def test_a_producer_that_is_given_up_gets_no_more_letters(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is lost, although its last letters have got their receipts just now."""
    rig.hand_on()
    (flight,) = rig.hand_off.flights
    monkeypatch.setattr(flight.sender, "give_up", lambda _: True)
    rig.world.close_async = lambda _callback: rig.world.events.append("close")  # type: ignore[attr-defined]
    rig.hand_off._take_from(flight.sender)
    rig.hand_on()
    assert (["publish", "close", "publish"], 2) == (rig.world.events, rig.world.created)


# -- trouble within trouble -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    [
        [("receipt", "MessageTooBig")],
        [("receipt", "Ok"), ("acknowledged", "ConnectError")],
    ],
    ids=["unpublished", "unacknowledged"],
)
def test_trouble_with_the_redelivery_cannot_reach_pulsar_client(
    rig: Rig, answers: list[tuple[str, str]]
) -> None:
    """For example no thread can be started: an exception in the callback would end the process."""

    def refuse(_raw: Any) -> None:
        raise RuntimeError("can't start new thread")

    rig.hand_off._come_back = refuse
    future = rig.hand_on()
    for what, result in answers:
        rig.world.answer(what, getattr(_pulsar.Result, result))
    assert (True, 2) == (future.done(), rig.permits())
    assert isinstance(future.exception(0), pr.SettleError)


def test_a_letter_without_a_thread_is_a_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first producer is opened on another thread; without one, the message comes back."""

    def refuse(_task: Callable[[], object]) -> bool:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rig.hand_off._worker, "submit", refuse)
    flight = rig.flight()
    rig.hand_off.hand_on_elsewhere(flight)
    assert isinstance(flight.future.exception(0), pr.LetterPublishError)
    assert (1, 2) == (len(rig.back), rig.permits())


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupted_hand_on_leaves_its_room(rig: Rig, raised: BaseException) -> None:
    """Ctrl-C while the first producer is made: the message comes back, and close need not wait."""
    rig.world.send_raises = raised
    with pytest.raises(type(raised)):
        rig.hand_on()
    assert (1, 2) == (len(rig.back), rig.permits())
