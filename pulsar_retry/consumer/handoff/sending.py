"""A letter on its way: its flight, its result, its raw message, and the two ways to send it.

If pulsar-client's thread runs Python for each receipt and for each acknowledgement, that costs more
than the letter, because this thread and the sending one compete for the interpreter. The extension
module (see `pulsar_retry.native.loading`) needs no Python for either. One thread takes its
outcomes, many at a time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import _pulsar
import attrs

from pulsar_retry.letters.letter import Letter
from pulsar_retry.runtime.fork import free_in_child
from pulsar_retry.runtime.upstream import error_of, keep_thread_state

_log = logging.getLogger("pulsar_retry")

_OK = _pulsar.Result.Ok

#: Makes a builder of raw messages; the default is pulsar-client's builder.
NewMessage = Callable[[], Any]

#: The states of a flight. MADE: its letter is not sent. SENT: it waits for the receipt. OUT: it
#: is published, and the message is being acknowledged. DONE: the caller knows the result.
MADE, SENT, OUT, DONE = range(4)

#: With more letters in flight than this, it is worth waiting for outcomes, so that they come in
#: bursts. With fewer letters, their callers probably wait for each.
_FEW = 32

#: Microseconds to wait for each letter in flight, and at most.
_PAUSE_EACH = 10
_PAUSE = 5_000

#: Milliseconds without an outcome after which the thread looks whether letters are left. If there
#: are none, it ends. The next letter starts a new thread.
_IDLE_MS = 1_000

_TOO_LARGE = (
    "{error}: its payload has {payload} bytes, and its properties have {properties}, which are not "
    "split into chunks (maxMessageSize, by default 5 MiB)"
)

_FINISHED = "FINISHED"  # as `Future` calls the state

#: `Future` logs here what its callbacks raise.
_future_log = logging.getLogger("concurrent.futures")

#: Guards the creation of every future's condition, for a very short time. It is re-entrant, because
#: a garbage collection can run meanwhile, and its finalizers can use a future.
_guard = free_in_child(threading.RLock())


class LetterFuture(Future[None]):
    """The result of a hand-off. It cannot be cancelled: a letter in flight cannot be called back.

    A normal future creates a condition and a dozen objects with it. Most of these are never used,
    because callers wait for the last future only. Here the first use creates the condition; the
    first callback does not need it.
    """

    # Class attributes, which an instance uses until it sets its own values. This makes it cheap.
    _state = "PENDING"
    _result = None
    _exception = None
    _first: Callable[[Future[None]], Any] | None = None

    def __init__(
        self, new_condition: Callable[[], threading.Condition] = threading.Condition
    ) -> None:
        self._new_condition = new_condition
        self._made: threading.Condition | None = None  # replaces Future's attribute, see above

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # Future's is writable
        if self._made is not None:
            return self._made
        condition = self._new_condition()
        with _guard:
            if self._made is None:
                self._waiters = []
                self._done_callbacks = [] if self._first is None else [self._first]
                self._made = condition
            return self._made

    def cancel(self) -> bool:
        """Return False, because a hand-off cannot be cancelled."""
        return False

    def succeed(self) -> None:
        """Resolve the future without an error."""
        with _guard:
            first = self._first
            if is_simple := self._made is None:  # so there are no waiters, and one callback at most
                self._state, self._first = _FINISHED, None
        if not is_simple:
            self.set_result(None)
            self._forget()
        elif first is not None:
            self._call(first)

    def set_exception(self, exception: BaseException | None) -> None:
        """Resolve the future with an error."""
        super().set_exception(exception)
        self._forget()

    def _forget(self) -> None:
        """Forget the callbacks, which were called: they can have the message, which has this."""
        with _guard:
            self._first, self._done_callbacks = None, []

    def add_done_callback(self, fn: Callable[[Future[None]], Any]) -> None:
        """Have *fn* called with this future when it is resolved, or now if it is already."""
        with _guard:
            if self._made is None and self._first is None and self._state != _FINISHED:
                self._first = fn
                return
        super().add_done_callback(fn)

    def _call(self, fn: Callable[[Future[None]], Any]) -> None:
        """Call a callback as `Future` does."""
        try:
            fn(self)
        except Exception:  # noqa: BLE001 - as `Future` does
            _future_log.exception("exception calling callback for %r", self)

    def done(self) -> bool:
        """Tell whether the future is resolved."""
        return self._state == _FINISHED

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None; wait at most *timeout* seconds."""
        if self._state == _FINISHED and self._exception is None:
            return None  # as in `result`
        return super().exception(timeout)

    def result(self, timeout: float | None = None) -> None:
        """Return None, or raise the error; wait at most *timeout* seconds."""
        # A future without an error needs neither a wait nor a condition.
        if self._state != _FINISHED or self._exception is not None:
            super().result(timeout)


@attrs.define(eq=False, weakref_slot=False)
class Flight:
    """One letter in flight.

    One is made for each letter. `has_receipt` and `acknowledged` run on pulsar-client's threads
    too, where an exception would end the process.

    Attributes:
        hand_off: The `HandOff` that it belongs to, the only one that ends it.
        raw: The raw message that the letter was made from.
        source: The raw consumer that acknowledges the message.
        letter: The letter.
        size: The size of its payload in bytes.
        future: The result for the caller.
        keeps: Whether the letter is published again if that has failed; then its message does not
            come back.
        failures: How often publishing has failed.
        state: MADE, SENT, OUT or DONE.
        outlet: The way of its letter; None before it is known.
        sender: What has sent the letter; None before that, and if it goes out alone.
        job: Its number in C++; 0: it has none.
        deadline: When it is given up, or published again, by the monotonic clock.
    """

    hand_off: Any
    raw: Any
    source: Any
    letter: Letter
    size: int
    future: LetterFuture
    keeps: bool = attrs.field(default=False, kw_only=True)
    failures: int = attrs.field(default=0, kw_only=True)
    state: int = attrs.field(default=MADE, kw_only=True)
    outlet: Any = attrs.field(default=None, kw_only=True)
    sender: Any = attrs.field(default=None, kw_only=True)
    job: int = attrs.field(default=0, kw_only=True)
    deadline: float = attrs.field(default=math.inf, kw_only=True)

    def anew(self) -> Flight:
        """Return a flight for another try. What the first one still hears has no effect on it."""
        return attrs.evolve(self, state=MADE, outlet=None, sender=None, job=0, deadline=math.inf)

    @property
    def is_over(self) -> bool:
        """Whether it is not in flight: it is done, or was given up."""
        return self not in self.hand_off.flights

    def has_receipt(self, result: _pulsar.Result, _message_id: Any = None) -> None:
        """Acknowledge the message if the letter is published. Never raises."""
        try:
            if result != _OK:
                self.state = MADE
                self.hand_off.not_published(self, result)
            elif self in self.hand_off.flights:  # otherwise it was given up, and comes back
                self.state = OUT
                self.source.acknowledge_async(self.raw, self.acknowledged)
        except BaseException as error:  # noqa: BLE001 - it must not reach the C++ library
            self.hand_off.finish([self], error)

    def acknowledged(self, result: _pulsar.Result) -> None:
        """Take the result of the acknowledgement. Never raises."""
        if result == _OK:
            self.hand_off.finish([self])
        else:
            self.hand_off.finish([self], error_of(result))


def refusal_of(result: _pulsar.Result, raw: Any, letter: Letter) -> Exception:
    """Return the error for a letter of *raw* that was not published."""
    error = error_of(result)
    if result != _pulsar.Result.MessageTooBig:
        return error
    text = _TOO_LARGE.format(error=error, payload=raw.length(), properties=bytes_of(letter))
    return type(error)(text)


def bytes_of(letter: Letter) -> int:
    """Return how many bytes the properties of *letter* have."""
    return sum(
        len(f"{name}{text}".encode(errors="replace")) for name, text in letter.properties.items()
    )


def build_letter(new_message: NewMessage, flight: Flight) -> Any:
    """Return a letter as a raw message; payload, keys and event time are those of its message.

    Its delay counts from now. *new_message* makes the builder.
    """
    raw, letter, builder = flight.raw, flight.letter, new_message()
    if letter.payload is not None:
        builder.content(letter.payload)
    elif raw.has_null_value():
        builder.set_null_value()
    else:
        builder.content(raw.data())
    builder.properties(letter.properties)
    try:
        key, ordering_key = raw.partition_key(), raw.ordering_key()
    except UnicodeDecodeError:
        key, ordering_key = _text_or_bytes(raw.partition_key), _text_or_bytes(raw.ordering_key)
    if key:
        builder.partition_key(key)
    if ordering_key:
        builder.ordering_key(ordering_key)
    if moment := raw.event_timestamp():
        builder.event_timestamp(moment)
    if moment := deliver_at(letter, flight.hand_off.clock.time):
        builder.deliver_at(moment)
    return builder.build()


def deliver_at(letter: Letter, clock: Callable[[], float]) -> int:
    """Return when *letter* is due, in milliseconds since 1970; 0: at once."""
    return round((clock() + letter.delay) * 1000) if letter.delay else 0


def _text_or_bytes(read: Callable[[], str]) -> str | bytes:
    """Return what *read* returns; a Java client can have stored bytes that are not text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        return error.object


#: Makes the raw message of a letter.
Build = Callable[[Flight], Any]


class CallbackSender:
    """Sends the letters of one of pulsar-client's producers. Thread-safe.

    Attributes:
        raw: The producer.
        build: Makes the raw message of a letter, whose delay counts from then on.
        oldest: The deadline of the letter that has waited longest for its receipt, as the last
            check has found it.
        lost: How many checks since then have found the connection lost.
    """

    def __init__(self, raw: Any, build: Build) -> None:
        self.raw = raw
        self.build = build
        self.oldest: float | None = None
        self.lost = 0

    def send(self, flight: Flight) -> None:
        """Send the letter of *flight*, which gets its receipt on this or another thread."""

        def received(result: _pulsar.Result, _message_id: Any) -> None:
            flight.has_receipt(result)
            keep_thread_state()

        self.raw.send_async(self.build(flight), received)

    def give_up(self, flight: Flight) -> bool:
        """Expect no receipt for *flight*; return whether it is too late, since it has one."""
        return flight.state == OUT

    def abandon(self) -> None:
        """Close the producer without waiting, so that it does not send again what it has sent."""
        self.raw.close_async(lambda _: None)

    def flush(self) -> None:
        """Wait for the receipts of the letters that were sent before.

        Raises:
            pulsar.PulsarException: one was not published.
        """
        self.raw.flush()

    def close(self) -> None:
        """Close the producer. Its letters in flight fail.

        Raises:
            pulsar.PulsarException: the broker could not be notified.
        """
        self.raw.close()


class NativeSender(CallbackSender):
    """Does the same in C++: Python learns only how a flight has ended."""

    def __init__(self, raw: Any, build: Build, outcomes: NativeOutcomes) -> None:
        super().__init__(raw, build)
        self._outcomes = outcomes
        self._send: Callable[..., int] = outcomes.native.sender(raw).send

    def send(self, flight: Flight) -> None:
        """Send the letter of *flight*; see `CallbackSender.send`."""
        letter = flight.letter
        # C++ always sends the payload of the message. A source can be a reader of this package.
        if letter.payload is not None or type(flight.source) is not _pulsar.Consumer:
            super().send(flight)
            return
        hand_off, outcomes = flight.hand_off, self._outcomes
        due = deliver_at(letter, hand_off.clock.time)
        if outcomes.taker is None:
            outcomes.start()  # first: if that fails, nothing was sent
        flight.job = self._send(flight.raw, flight.source, letter.properties, due, flight)
        if flight not in hand_off.flights:  # it was given up meanwhile, perhaps
            outcomes.native.give_up(flight.job)
        if outcomes.taker is None:  # it may have ended meanwhile
            outcomes.start()

    def give_up(self, flight: Flight) -> bool:
        """Expect no outcome for *flight*; see `CallbackSender.give_up`."""
        job, flight.job = flight.job, 0
        return bool(self._outcomes.native.give_up(job)) if job else super().give_up(flight)

    def flush(self) -> None:
        """Wait for receipts; see `CallbackSender.flush`."""
        self._outcomes.native.send_all()
        super().flush()

    def close(self) -> None:
        """Close the producer; see `CallbackSender.close`."""
        self._outcomes.native.send_all()  # a letter that is sent meanwhile may get no receipt
        super().close()
        self._outcomes.native.wake()


class NativeOutcomes:
    """The outcomes of one hand-off's letters that are sent in C++. Thread-safe.

    Attributes:
        native: The object of the extension module that sends them and has their outcomes.
        taker: The thread that takes them; None if there is none.
    """

    def __init__(self, module: Any, finish: Callable[[list[Flight]], None]) -> None:
        """Make it; *finish* gets the flights that succeeded, and must not raise."""
        self.native = module.Outcomes()
        self._finish = finish
        self._lock = threading.RLock()  # a finalizer may hand on, too, in the same thread
        self.taker: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if there is none."""
        with self._lock:
            if self.taker is None:
                taker = threading.Thread(target=self._take, name="pulsar-retry-receipts")
                taker.daemon = True
                taker.start()
                self.taker = taker

    def _take(self) -> None:
        take, finish = self.native.take, self._finish
        while True:
            try:
                succeeded, failed = take(_IDLE_MS, _FEW, _PAUSE_EACH, _PAUSE)
            except Exception:  # noqa: BLE001 - no memory, perhaps; letters fail by their time-outs
                _log.exception("outcomes of letters could not be taken")
                time.sleep(_IDLE_MS / 1000)
                succeeded, failed = [], []
            if succeeded:
                guarded(finish, succeeded)
            for flight, is_out, result in failed:
                flight.job = 0
                has_ended = flight.acknowledged if is_out else flight.has_receipt
                if is_out:
                    flight.state = OUT
                guarded(has_ended, _pulsar.Result(result))
            if not succeeded and not failed and self._ends():
                return
            flight = has_ended = None
            del succeeded, failed  # do not keep them alive during the wait

    def _ends(self) -> bool:
        """Tell whether the thread that calls it ends, because nothing is in flight."""
        with self._lock:
            taker, self.taker = self.taker, None
            if not len(self.native):  # a letter that is sent later finds no thread, and starts one
                return True
            self.taker = taker
            return False


def guarded(call: Callable[..., None], *arguments: Any) -> None:
    """Call what must not raise, because C++ has called, or other letters wait for their ends."""
    try:
        call(*arguments)
    except BaseException:  # noqa: BLE001 - a caller's callback can raise anything
        is_callback = isinstance(getattr(call, "__self__", None), LetterFuture)
        what = "a callback of the future of a letter" if is_callback else "the end of a letter"
        _log.exception("%s raised an exception", what)
