"""The inbox: one stream of messages from a topic and its retry topic.

Its two consumers are fakes that keep pulsar-client's promises: a message goes to exactly one
receive, an asynchronous receive that waits comes first, and closing ends every one that waits.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import queue
import signal
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import _pulsar
import attrs
import pulsar
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pulsar_retry.consumer.inbox import TURN_SECONDS, Inbox
from pulsar_retry.runtime.clock import Clock
from support.waiting import eventually

UNLIMITED = -1
OK, CLOSED = _pulsar.Result.Ok, _pulsar.Result.AlreadyClosed


@attrs.frozen
class Message:
    """A message of the topic ("m") or a letter ("l")."""

    kind: str
    number: int
    size: int = 1

    def length(self) -> int:
        """Return the bytes of the payload."""
        return self.size

    def topic_name(self) -> str:
        """Return the topic."""
        return self.kind

    def message_id(self) -> pulsar.MessageId:
        """Return an id; ids grow with the numbers."""
        return pulsar.MessageId(-1, 1, self.number, -1)._msg_id


def m(*numbers: int) -> list[Message]:
    """Return messages of the topic."""
    return [Message("m", number) for number in numbers]


def l(*numbers: int) -> list[Message]:  # noqa: E743 - short, for it stands in every test
    """Return letters."""
    return [Message("l", number) for number in numbers]


class FakeConsumer:
    """One of pulsar-client's consumers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Message] = deque()
        self._waiting: deque[Callable[[Any, Any], None]] = deque()
        self._closed = False
        self.connected = True

    def is_connected(self) -> bool:
        """Tell what the test says."""
        return self.connected

    def deliver(self, *messages: Message) -> None:
        """Let messages arrive, as pulsar-client's thread does."""
        for message in messages:
            with self._lock:
                callback = self._waiting.popleft() if self._waiting else None
                if callback is None:
                    self._queue.append(message)
            if callback is not None:
                callback(OK, message)

    def slip(self, *messages: Message) -> None:
        """Let messages arrive, and overlook a receive that waits, as pulsar-client can do it."""
        with self._lock:
            self._queue.extend(messages)

    def receive(self, timeout: int) -> Message:
        """Return what is there: the inbox never waits here."""
        assert timeout <= 0
        with self._lock:
            if self._closed:
                raise pulsar.AlreadyClosed("closed")
            if not self._queue:
                raise pulsar.Timeout("nothing")
            return self._queue.popleft()

    def receive_async(self, callback: Callable[[Any, Any], None]) -> None:
        """Call back when a message is there, maybe before this returns."""
        with self._lock:
            message = self._queue.popleft() if self._queue else None
            if message is None and not self._closed:
                self._waiting.append(callback)
                return
        callback(OK if message else CLOSED, message)

    def close(self) -> None:
        """Close, and end what waits."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
        for callback in waiting:
            callback(CLOSED, None)

    def close_async(self, callback: Callable[[Any], None]) -> None:
        """Close likewise."""
        self.close()
        callback(OK)


class LaterClock(Clock):
    """The system's clock, but for what it was put forward."""

    def __init__(self) -> None:
        self.more = 0.0
        self.stands_at: float | None = None

    def monotonic(self) -> float:
        """Return the time."""
        return self.more + (time.monotonic() if self.stands_at is None else self.stands_at)

    def stand(self) -> None:
        """Let no time pass but what `pass_turn` lets."""
        self.stands_at = time.monotonic()

    def pass_turn(self) -> None:
        """Let the time of a turn pass."""
        self.more += 1.01 * TURN_SECONDS  # floats are not exact


class Interrupted(threading.Condition):
    """What a blocked receive waits on, with a place to let a signal come."""

    def __init__(self, clock: LaterClock) -> None:
        super().__init__(threading.Lock())
        self._clock = clock
        self.before_waiting: Callable[[], None] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, as a blocked receive does."""
        hook, self.before_waiting = self.before_waiting, lambda: None
        hook()
        if self._clock.stands_at is not None and timeout is not None:
            self._clock.more += timeout
            return False
        return super().wait(timeout)


class Rig:
    """An inbox with its two fakes, received from as `Consumer.receive` does it."""

    def __init__(self, keep: float = 0.2, *, arms: bool = True) -> None:
        self.main = FakeConsumer()
        self.retry = FakeConsumer()
        self.letters_seen: list[Message] = []
        self.clock = LaterClock()
        self.inbox = Inbox(
            self.main, self.retry, self.letters_seen.append, arms=arms, clock=self.clock
        )
        self.inbox._main.keep = keep
        self.changed = self.inbox._changed = Interrupted(self.clock)

    def receive(self, timeout: float | None = 0) -> Message:
        """Receive by the fast way, else by the inbox."""
        if (fast_receive := self.inbox.fast_receive) is not None:
            with contextlib.suppress(pulsar.Timeout):
                return fast_receive(0)
        return self.inbox.receive(timeout)

    def receive_all(self) -> list[Message]:
        """Receive until nothing is left."""
        messages = []
        with contextlib.suppress(pulsar.Timeout):
            while True:
                messages.append(self.receive())
        return messages

    def batch(self, count: int = UNLIMITED, size: int = UNLIMITED, wait: int = 1) -> list[Message]:
        """Receive a batch."""
        return self.inbox.receive_batch((count, size, wait))

    def close(self) -> None:
        """Close both consumers, the retry topic's first."""
        self.retry.close()
        self.main.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Give an inbox, and close its consumers afterwards."""
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Switch threads as often as possible, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("is_back", [False, True])
def test_what_a_lost_connection_has_fetched_is_dropped(rig: Rig, is_back: bool) -> None:
    """If there is a connection again, a message may be of that one, which sends it once only."""
    assert [] == rig.receive_all()  # a receive waits in both
    rig.main.deliver(*m(1))
    rig.main.connected = is_back
    rig.inbox.leave_topic()
    rig.main.slip(*m(2))
    rig.retry.deliver(*l(3))
    assert [*(m(1) if is_back else []), *l(3)] == rig.receive_all()
    rig.inbox.go_on()
    assert m(2) == rig.receive_all()


# -- one receiver ---------------------------------------------------------------------------------


def test_nothing_there_is_a_timeout(rig: Rig) -> None:
    """As pulsar-client's: its exception, from both ways to receive nothing."""
    with pytest.raises(pulsar.Timeout):
        rig.inbox.receive(0)
    with pytest.raises(pulsar.Timeout):
        rig.inbox.receive(0.001)


def test_both_sources_get_their_turn(rig: Rig) -> None:
    """While both are full, neither waits for the other to run dry."""
    rig.clock.stand()
    rig.main.deliver(*m(*range(9)))
    rig.retry.deliver(*l(*range(9)))
    kinds = [rig.receive().kind for _ in range(2)]
    for _ in range(3):
        rig.clock.pass_turn()
        rig.inbox.look_if_due(rig.clock.monotonic())  # as a consumer does
        kinds += [rig.receive().kind for _ in range(2)]
    assert [*"llmmllmm"] == kinds


def test_what_flows_from_both_is_asked_for(rig: Rig) -> None:
    """An asynchronous receive would cost more than the letter; it comes when letters get few."""
    rig.clock.stand()
    rig.main.deliver(*m(*range(100)))
    rig.retry.deliver(*l(0))
    received = [rig.receive() for _ in range(3)]
    for number in range(1, 20):
        rig.retry.deliver(*l(number))
        rig.clock.pass_turn()
        rig.inbox.look_if_due(rig.clock.monotonic())
        received += [rig.receive() for _ in range(3)]
        assert not rig.inbox._retry.armed
    assert l(*range(20)) == [each for each in received if each.kind == "l"]
    for _ in range(3):
        rig.receive()
        rig.clock.pass_turn()
        rig.inbox.look_if_due(rig.clock.monotonic())
    assert rig.inbox._retry.armed
    assert rig.inbox.fast_receive is not None


def test_no_letter_is_kept_with_an_acknowledgement_timeout() -> None:
    """The time-out starts when a letter leaves pulsar-client; it is the next one nevertheless."""
    rig = Rig(arms=False)
    rig.clock.stand()
    rig.main.deliver(*m(*range(5)))
    rig.receive()
    rig.retry.deliver(*l(0))
    rig.clock.pass_turn()
    rig.receive()
    rig.inbox.look_if_due(rig.clock.monotonic())  # as a consumer does after a message
    assert not rig.inbox.holds()
    assert l(0) == [rig.receive()]


@pytest.mark.parametrize("kind", ["m", "l"])
def test_what_is_there_is_found_with_an_acknowledgement_timeout(kind: str) -> None:
    """Also if there was nothing a moment ago."""
    rig = Rig(arms=False)
    rig.clock.stand()
    source = rig.main if kind == "m" else rig.retry
    source.deliver(Message(kind, 0))
    rig.inbox.receive(0)
    with pytest.raises(pulsar.Timeout):
        rig.inbox.receive(0)
    source.deliver(Message(kind, 1))
    assert Message(kind, 1) == rig.inbox.receive(0)


def test_a_closed_retry_topic_takes_no_message_from_its_receiver(rig: Rig) -> None:
    """Whoever looks has a message in hand."""
    rig.clock.stand()
    rig.retry.deliver(*l(0))
    rig.main.deliver(*m(0, 1, 2))
    assert [*l(0), *m(0)] == [rig.receive(), rig.receive()]
    rig.clock.pass_turn()
    rig.retry.close()
    assert m(1) == [rig.receive()]
    rig.inbox.look_if_due(rig.clock.monotonic())


def test_a_source_that_another_thread_arms_does_not_flow(rig: Rig) -> None:
    """Its next message is under way, and later ones must not overtake it."""
    rig.main.deliver(*m(0, 1))
    bare = rig.main.receive

    def receive(timeout: int) -> Message:
        message = bare(timeout)
        with contextlib.suppress(pulsar.Timeout):
            rest = bare(timeout)  # so that the asynchronous receive waits
            rig.main.receive = bare
            rig.inbox._arm(rig.inbox._main)
            rig.main.slip(rest)
        return message

    rig.main.receive = receive
    assert m(0) == [rig.receive()]
    assert rig.inbox.fast_receive is None


def test_a_caller_that_finds_nothing_is_called(rig: Rig) -> None:
    """Although both sources had messages a moment ago."""
    rig.clock.stand()
    rig.main.deliver(*m(1))
    rig.retry.deliver(*l(1))
    called: list[None] = []
    rig.inbox.on_ready = lambda: called.append(None)
    while rig.inbox.take() is not None:
        pass
    for source, [message] in [(rig.main, m(2)), (rig.retry, l(2))]:
        assert not called
        source.deliver(message)
        assert called
        called.clear()
        taken = rig.inbox.take()
        assert taken is not None
        assert message == taken.message


def test_letters_are_seen_when_they_are_returned(rig: Rig) -> None:
    """Taken at once or after waiting, each is announced exactly once, and messages never."""
    rig.retry.deliver(*l(1))
    rig.main.deliver(*m(1))
    rig.receive_all()
    rig.retry.deliver(*l(2))
    rig.main.deliver(*m(2))
    rig.receive_all()
    assert l(1, 2) == rig.letters_seen


def test_a_timed_out_receive_loses_nothing(rig: Rig) -> None:
    """What arrives afterwards is for the next call, in its order."""
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    rig.main.deliver(*m(1, 2))
    rig.retry.deliver(*l(1, 2))
    received = rig.receive_all()
    assert (m(1, 2), l(1, 2)) == (
        [each for each in received if each.kind == "m"],
        [each for each in received if each.kind == "l"],
    )


def test_an_interrupted_receive_loses_nothing(rig: Rig) -> None:
    """Ctrl-C ends a blocked receive at once; the message that comes then is for the next."""
    main_thread = threading.main_thread().ident
    assert main_thread == threading.get_ident()

    def interrupt() -> None:
        eventually(lambda: rig.inbox._waiting)
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        rig.receive(20)
    thread.join()
    rig.main.deliver(*m(1, 2))
    assert m(1, 2) == rig.receive_all()


def test_the_express_is_taken_while_only_the_topic_flows(rig: Rig) -> None:
    """Then a receive costs what pulsar-client's own does."""
    rig.main.deliver(*m(1, 2, 3))
    assert rig.inbox.fast_receive is None
    rig.receive()
    assert rig.main.receive == rig.inbox.fast_receive


@pytest.mark.parametrize("flowing", [1, 2, 5])
def test_a_letter_ends_the_express(rig: Rig, flowing: int) -> None:
    """It is next, however much the topic holds."""
    rig.main.deliver(*m(*range(100)))
    for _ in range(flowing):
        rig.receive()
    rig.retry.deliver(*l(1))
    assert l(1) == [rig.receive()]


def test_an_empty_express_falls_back(rig: Rig) -> None:
    """It ends when the topic runs dry, and begins anew when it flows again."""
    rig.clock.stand()
    rig.main.deliver(*m(1, 2))
    assert m(1, 2) == rig.receive_all()
    assert rig.inbox.fast_receive is None
    rig.main.deliver(*m(3, 4, 5))
    assert m(3, 4, 5) == [rig.receive() for _ in range(3)]
    assert rig.inbox.fast_receive is not None


def test_a_letter_that_slips_in_is_not_overlooked(rig: Rig) -> None:
    """It may come at the moment in which the fast way begins."""
    rig.main.deliver(*m(1, 2, 3))
    rig.retry.receive_async = lambda callback: callback(OK, *l(1))
    assert [*"ml"] == [rig.receive().kind, rig.receive().kind]


@pytest.mark.parametrize("kind", ["m", "l"])
@pytest.mark.parametrize("timeout", [0, 0.05, 20, None])
def test_a_message_that_pulsar_client_overlooks_comes(
    rig: Rig, kind: str, timeout: float | None
) -> None:
    """It lies in the queue, although a receive waits for it."""
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    message = Message(kind, 1)
    (rig.main if kind == "m" else rig.retry).slip(message)
    found: list[Message] = []
    deadline = time.monotonic() + 120
    while not found and time.monotonic() < deadline:
        with contextlib.suppress(pulsar.Timeout):
            found.append(rig.receive(timeout))
    assert [message] == found
    assert ([message] if kind == "l" else []) == rig.letters_seen


def test_an_overlooked_letter_comes_while_messages_flow(rig: Rig) -> None:
    """The retry topic is looked at now and then, also if the topic never runs dry."""
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    rig.retry.slip(*l(1))
    numbers = itertools.count()
    deadline = time.monotonic() + 120
    while not rig.letters_seen and time.monotonic() < deadline:
        rig.main.deliver(*m(next(numbers), next(numbers)))
        rig.receive()
        rig.inbox.look_if_due(time.monotonic())  # as `Receiving.is_trusted` does it
    assert l(1) == rig.letters_seen


@pytest.mark.parametrize("looks", [False, True])
def test_an_overlooked_message_keeps_its_place(rig: Rig, looks: bool) -> None:
    """The next message ends the wait, and is returned after it."""
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    rig.main.slip(*m(1))
    if looks:
        rig.inbox.look_if_due(time.monotonic() + 1)
    rig.main.deliver(*m(2, 3))
    assert m(1, 2, 3) == rig.receive_all()


def test_a_newer_message_does_not_overtake(rig: Rig) -> None:
    """A receive is being answered while the queue has the next message already."""
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    answer = rig.main._waiting.popleft()
    rig.main.deliver(*m(2))
    rig.inbox.look_if_due(time.monotonic() + 1)
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    answer(OK, *m(1))
    assert m(1, 2) == rig.receive_all()


@pytest.mark.parametrize("timeout", [None, 1.0])
def test_a_late_answer_keeps_its_place(timeout: float | None) -> None:
    """pulsar-client's listener thread brings it, and is busy with another listener."""
    rig = Rig(keep=20)
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    answer = rig.main._waiting.popleft()
    rig.main.deliver(*m(2, 3))
    late = threading.Timer(1, lambda: answer(OK, *m(1)))
    late.start()
    found: list[Message] = []
    while len(found) < 3:
        with contextlib.suppress(pulsar.Timeout):
            found.append(rig.receive(timeout))
    late.join()
    rig.close()
    assert m(1, 2, 3) == found


@attrs.frozen
class NonPersistent:
    """A message of a non-persistent topic, whose ids are all alike but for the batch index."""

    batch: str
    index: int

    def topic_name(self) -> str:
        """Return the topic."""
        return "non-persistent://public/default/topic"

    def message_id(self) -> pulsar.MessageId:
        """Return the id."""
        return pulsar.MessageId(-1, 0, 0, self.index)._msg_id


def test_batches_of_a_non_persistent_topic_keep_their_order(rig: Rig) -> None:
    """Their ids do not tell which of two messages is the newer one."""
    first, second, third = NonPersistent("a", 1), NonPersistent("b", 0), NonPersistent("b", 1)
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    answer = rig.main._waiting.popleft()
    rig.main.deliver(second, third)  # type: ignore[arg-type]
    answer(OK, first)
    assert [first, second, third] == rig.receive_all()


def test_what_was_overlooked_keeps_no_consumer_alive() -> None:
    """A consumer that is dropped is closed at once, not by the garbage collector."""
    rig = Rig()
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    rig.main.slip(*m(1))
    rig.inbox.look_if_due(time.monotonic() + 1)
    assert rig.inbox._main.overlooked
    rig.main._waiting.clear()
    main = weakref.ref(rig.main)
    gc.disable()
    try:
        del rig
        assert main() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("letters", [False, True])
def test_dropping_drops_what_was_overlooked(rig: Rig, letters: bool) -> None:
    """A seek moves it too; letters stay unless they are dropped, too."""
    with pytest.raises(pulsar.Timeout):
        rig.receive()
    rig.main.slip(*m(1))
    rig.retry.slip(*l(1))
    rig.inbox.look_if_due(time.monotonic() + 1)
    assert rig.inbox.holds()
    dropped = [item.message for item in rig.inbox.drop(letters=letters)]
    assert {*m(1), *(l(1) if letters else [])} == set(dropped)
    assert ([] if letters else l(1)) == rig.receive_all()


class InOrder(RuleBasedStateMachine):
    """One receiver, anything happening between its calls: nothing lost, doubled or overtaken."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.numbers = itertools.count()
        self.delivered: dict[str, list[Message]] = {"m": [], "l": []}
        self.received: dict[str, list[Message]] = {"m": [], "l": []}
        self.slipped: set[Message] = set()  # letters, which may be overtaken
        self.rig.clock.stand()

    @rule(kind=st.sampled_from("ml"), count=st.integers(1, 5))
    def deliver(self, kind: str, count: int) -> None:
        """Let messages arrive."""
        messages = [Message(kind, next(self.numbers)) for _ in range(count)]
        (self.rig.main if kind == "m" else self.rig.retry).deliver(*messages)
        self.delivered[kind] += messages

    @rule(kind=st.sampled_from("ml"))
    def slip(self, kind: str) -> None:
        """Let a message arrive at the moment in which a receive begins to wait."""
        consumer = self.rig.main if kind == "m" else self.rig.retry
        if consumer._waiting and not consumer._queue:
            message = Message(kind, next(self.numbers))
            consumer.slip(message)
            self.delivered[kind].append(message)
            if kind == "l":
                self.slipped.add(message)

    @rule()
    def pass_turn(self) -> None:
        """Let time pass."""
        self.rig.clock.pass_turn()

    @rule()
    def look(self) -> None:
        """Look, as a consumer does about every millisecond."""
        self.rig.inbox.look_if_due(self.rig.clock.monotonic())

    @rule()
    def receive(self) -> None:
        """Receive without waiting, as a consumer does."""
        with contextlib.suppress(pulsar.Timeout):
            self._take([self.rig.receive()])

    @rule(count=st.integers(1, 8))
    def receive_batch(self, count: int) -> None:
        """Receive as many as there are, up to a limit."""
        self._take(self.rig.batch(count))

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self.received[message.kind].append(message)

    @invariant()
    def in_order(self) -> None:
        """Each source's messages come as it delivered them, but for letters that slipped in."""
        for kind, everything in self.received.items():
            received = [each for each in everything if each not in self.slipped]
            delivered = [each for each in self.delivered[kind] if each not in self.slipped]
            assert delivered[: len(received)] == received
            assert len(set(everything)) == len(everything)

    def teardown(self) -> None:
        """Everything that was delivered can be received."""
        self.rig.clock.stands_at = None
        self._take(self.rig.receive_all())
        deadline = time.monotonic() + 120
        while self._missing() and time.monotonic() < deadline:
            self._take(self.rig.receive_all())  # what was overlooked comes a little later
        self.rig.close()
        assert not self._missing()
        self.in_order()

    def _missing(self) -> set[Message]:
        return {
            message
            for kind, delivered in self.delivered.items()
            for message in set(delivered) - set(self.received[kind])
        }


InOrder.TestCase.settings = settings(stateful_step_count=30, deadline=None)
TestInOrder = InOrder.TestCase
TestInOrder.__doc__ = InOrder.__doc__


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_ends_at_its_count(rig: Rig) -> None:
    """What is over waits for the next call."""
    rig.main.deliver(*m(*range(5)))
    assert m(0, 1, 2) == rig.batch(count=3, wait=UNLIMITED)
    assert m(3, 4) == rig.receive_all()


def test_a_batch_does_not_exceed_its_size(rig: Rig) -> None:
    """As pulsar-client's: only a first message may be bigger than the limit."""
    rig.main.deliver(*(Message("m", number, size=40) for number in range(4)))
    rig.main.deliver(Message("m", 4, size=400))
    assert [0, 1] == [each.number for each in rig.batch(size=100, wait=UNLIMITED)]
    assert [2, 3] == [each.number for each in rig.batch(size=100, wait=UNLIMITED)]
    assert [4] == [each.number for each in rig.batch(size=100, wait=UNLIMITED)]


def test_a_batch_ends_in_time(rig: Rig) -> None:
    """Whatever there is by then is returned, be it nothing."""
    assert [] == rig.batch(count=10, wait=1)
    rig.main.deliver(*m(1))
    assert m(1) == rig.batch(count=10, wait=100)


def test_a_batch_holds_messages_and_letters(rig: Rig) -> None:
    """Whichever there are."""
    rig.main.deliver(*m(1, 2))
    rig.retry.deliver(*l(1))
    assert Counter([*m(1, 2), *l(1)]) == Counter(rig.batch(count=3, wait=UNLIMITED))


def test_a_batch_waits_for_its_count(rig: Rig) -> None:
    """Without a time limit it blocks until there is enough, from either source."""

    def deliver() -> None:
        for each in (
            (rig.main.deliver, *m(1)),
            (rig.retry.deliver, *l(1)),
            (rig.main.deliver, *m(2)),
        ):
            eventually(lambda: rig.inbox._waiting)
            each[0](*each[1:])
            eventually(lambda: not rig.inbox._ready)

    thread = threading.Thread(target=deliver)
    thread.start()
    batch = rig.batch(count=3, wait=UNLIMITED)
    thread.join()
    assert [*m(1), *l(1), *m(2)] == batch


# -- dropping -------------------------------------------------------------------------------------


def armed(rig: Rig) -> None:
    """Make both sources wait for a message, as after a receive that found nothing."""
    with pytest.raises(pulsar.Timeout):
        rig.receive()


def test_dropping_forgets_what_waits_here(rig: Rig) -> None:
    """Messages that were taken from pulsar-client but not received; new ones come as usual."""
    armed(rig)
    rig.main.deliver(*m(1))
    rig.retry.deliver(*l(1))
    rig.inbox.drop()
    rig.main.deliver(*m(2))
    rig.retry.deliver(*l(2))
    assert Counter([*m(2), *l(2)]) == Counter(rig.receive_all())
    assert l(2) == rig.letters_seen


def test_dropping_can_spare_the_letters(rig: Rig) -> None:
    """A seek is about the topic alone."""
    armed(rig)
    rig.main.deliver(*m(1))
    rig.retry.deliver(*l(1))
    rig.inbox.drop(letters=False)
    assert l(1) == rig.receive_all()


def test_dropping_forgets_what_a_batch_put_back(rig: Rig) -> None:
    """It has been taken from pulsar-client, too."""
    rig.main.deliver(Message("m", 1, size=60), Message("m", 2, size=60))
    assert [1] == [each.number for each in rig.batch(size=100, wait=UNLIMITED)]
    rig.inbox.drop(letters=False)
    assert [] == rig.receive_all()


def test_dropping_leaves_a_waiting_receiver_waiting(rig: Rig) -> None:
    """It gets the next message that comes, from either source."""
    received: list[Message] = []
    thread = threading.Thread(target=lambda: received.append(rig.receive(20)))
    thread.start()
    eventually(lambda: rig.inbox._waiting)
    rig.inbox.drop()
    rig.retry.deliver(*l(1))
    thread.join()
    assert l(1) == received


def test_dropping_does_not_open_what_is_closed(rig: Rig) -> None:
    """A closed consumer stays closed for everyone."""
    armed(rig)
    rig.close()
    rig.inbox.drop()
    for _ in range(2):
        with pytest.raises(pulsar.AlreadyClosed):
            rig.receive(20)


# -- the end --------------------------------------------------------------------------------------


def test_closing_wakes_every_receiver(rig: Rig) -> None:
    """However many wait; none for ever."""
    errors: list[Exception] = []

    def receive() -> None:
        try:
            rig.receive(None)
        except pulsar.AlreadyClosed as error:
            errors.append(error)

    threads = [threading.Thread(target=receive, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: rig.inbox._waiting == 8)
    rig.close()
    for thread in threads:
        thread.join(120)
    assert 8 == len(errors)


@pytest.mark.parametrize("waited", [True, False])
def test_a_closed_inbox_says_so(rig: Rig, waited: bool) -> None:
    """Every time, whether a receive had waited before or not."""
    if waited:
        armed(rig)
    rig.close()
    for _ in range(3):
        with pytest.raises(pulsar.AlreadyClosed):
            rig.receive(20)
    with pytest.raises(pulsar.AlreadyClosed):
        rig.batch(wait=UNLIMITED)


def test_a_waiting_receive_does_not_keep_the_inbox(rig: Rig) -> None:
    """pulsar-client holds its callback; a consumer that nobody closed must go all the same."""
    armed(rig)
    gone = weakref.ref(rig.inbox)
    del rig.inbox
    gc.collect()
    assert gone() is None
    rig.main.deliver(*m(1))  # a late callback finds nobody and raises nothing


# -- several receivers ----------------------------------------------------------------------------


def receive_one(rig: Rig) -> list[Message]:
    """Block for a message."""
    return [rig.receive(None)]


def receive_impatiently(rig: Rig) -> list[Message]:
    """Wait very shortly."""
    with contextlib.suppress(pulsar.Timeout):
        return [rig.receive(0.0005)]
    return []


def receive_some(rig: Rig) -> list[Message]:
    """Receive a small batch."""
    return rig.batch(count=3)


@pytest.mark.usefixtures("busy_switching")
@pytest.mark.parametrize(
    "ways",
    [
        [receive_one] * 6,
        [receive_impatiently] * 6,
        [receive_one, receive_impatiently] * 3,
        [receive_one, receive_impatiently, receive_some] * 2,
    ],
    ids=["blocking", "impatient", "both", "batches too"],
)
def test_threads_share_the_messages(rig: Rig, ways: list[Callable[[Rig], list[Message]]]) -> None:
    """However they receive while messages and letters arrive: each message comes to one of them."""
    received: queue.SimpleQueue[Message] = queue.SimpleQueue()
    messages, letters = m(*range(1500)), l(*range(1500))

    def work(way: Callable[[Rig], list[Message]]) -> None:
        with contextlib.suppress(pulsar.AlreadyClosed):
            while True:
                for message in way(rig):
                    received.put(message)

    receivers = [threading.Thread(target=work, args=(way,), daemon=True) for way in ways]
    arrivals = [
        threading.Thread(target=source.deliver, args=each, daemon=True)
        for source, each in [(rig.main, messages), (rig.retry, letters)]
    ]
    for thread in (*receivers, *arrivals):
        thread.start()
    try:
        eventually(lambda: received.qsize() >= len(messages) + len(letters))
    finally:
        rig.close()
    for thread in receivers:
        thread.join(120)
    everything = [received.get_nowait() for _ in range(received.qsize())]
    assert Counter([*messages, *letters]) == Counter(everything)
    assert Counter(letters) == Counter(rig.letters_seen)


@pytest.mark.parametrize("kind", ["m", "l"])
def test_a_receiver_that_waits_is_served_after_another(rig: Rig, kind: str) -> None:
    """A thread that takes the message another one waits for leaves a receive behind for it."""
    source = rig.main if kind == "m" else rig.retry
    received: list[Message] = []
    thread = threading.Thread(target=lambda: received.append(rig.receive(20)))
    thread.start()
    eventually(lambda: rig.inbox._waiting)
    rig.changed.notify = lambda: None  # the waiting thread is not told of the first message,
    source.deliver(Message(kind, 1))
    assert Message(kind, 1) == rig.receive()  # for this one is faster
    del rig.changed.notify
    source.deliver(Message(kind, 2), Message(kind, 3))
    thread.join()
    assert [Message(kind, 2)] == received


# -- interruptions and the fast way ---------------------------------------------------------------


def test_an_interrupted_batch_loses_nothing(rig: Rig) -> None:
    """What it had already is for the next call, letters too."""
    rig.main.deliver(*m(1, 2))
    rig.retry.deliver(*l(1))
    rig.changed.before_waiting = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        rig.batch(count=10, wait=UNLIMITED)
    assert Counter([*m(1, 2), *l(1)]) == Counter(rig.receive_all())


def test_an_interrupted_batch_keeps_letters_apart(rig: Rig) -> None:
    """A seek of the topic forgets its messages, not the letters."""
    rig.main.deliver(*m(1, 2))
    rig.retry.deliver(*l(1))
    rig.changed.before_waiting = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        rig.batch(count=10, wait=UNLIMITED)
    rig.inbox.drop(letters=False)
    assert l(1) == rig.receive_all()


def test_what_a_batch_put_back_comes_before_the_express(rig: Rig) -> None:
    """Mixing the two ways to receive keeps the order."""
    sizes = [Message("m", number, size=60) for number in range(5)]
    rig.main.deliver(*sizes)
    assert sizes[:1] == [rig.receive()]
    assert sizes[1:2] == rig.batch(size=100, wait=UNLIMITED)
    assert sizes[2:] == rig.receive_all()


def test_the_express_ends_when_a_letter_is_taken(rig: Rig) -> None:
    """The retry topic is looked at again, however fast the topic flows."""
    rig.main.deliver(*m(*range(100)))
    rig.receive()
    rig.receive()
    assert rig.inbox.fast_receive is not None
    rig.retry.deliver(*l(1, 2))
    rig.clock.pass_turn()
    assert l(1, 2) == [each for each in (rig.receive() for _ in range(4)) if each.kind == "l"]


def test_a_time_that_has_passed_is_over(rig: Rig) -> None:
    """A receive with no time left looks once."""
    with pytest.raises(pulsar.Timeout):
        rig.inbox.receive(0)
    rig.main.deliver(*m(1))
    assert m(1) == [rig.inbox.receive(0)]


def test_every_receive_that_waits_is_answered_at_the_end(rig: Rig) -> None:
    """Both sources answer when they are closed, and nothing is waited for after."""
    armed(rig)
    assert 2 == rig.inbox._unanswered
    rig.main.deliver(*m(1))
    rig.receive()
    armed(rig)
    assert 2 == rig.inbox._unanswered
    rig.close()
    assert 0 == rig.inbox._unanswered
