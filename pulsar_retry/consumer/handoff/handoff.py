"""The hand-off: publish a letter, wait for its receipt, then acknowledge the original.

In this order nothing is lost. A crash between publishing and acknowledging leaves a duplicate,
which Pulsar's at-least-once delivery permits anyway.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.handoff.alone import SingleFile
from pulsar_retry.consumer.handoff.producers import LetterProducers
from pulsar_retry.consumer.handoff.sending import (
    DONE,
    OUT,
    SENT,
    CallbackSender,
    Flight,
    NativeOutcomes,
    NativeSender,
    NewMessage,
    build_letter,
    guarded,
    refusal_of,
)
from pulsar_retry.consumer.source import COME_BACK
from pulsar_retry.errors import (
    AcknowledgeError,
    ConfigError,
    ConsumerClosedError,
    LetterPublishError,
    SettleError,
)
from pulsar_retry.native.loading import native
from pulsar_retry.observe.watch import Watch
from pulsar_retry.runtime.clock import SYSTEM, Clock, Timer
from pulsar_retry.runtime.exiting import ending
from pulsar_retry.runtime.upstream import PRODUCER_GONE, error_of, level_of
from pulsar_retry.runtime.worker import Worker

_log = logging.getLogger("pulsar_retry")

_UNREADABLE = (
    "the message could not be decrypted, and a letter with its payload could never be read, "
    "because a letter cannot carry the encryption context: pass subscribe a crypto_key_reader that "
    "has the key"
)

#: Seconds that pulsar-client has to report its own time-out, before this package gives up.
_GRACE = 1.0

#: Seconds without a receipt after which the connection of a letter is checked, and then between two
#: checks. pulsar-client reconnects every 0.1 s to a broker that closes the connection again.
_CHECK_AFTER, _CHECK_AGAIN = 0.2, 0.05

#: How many checks in succession find the connection lost three times.
_LOST = 6

#: While a consumer's letters in flight have this many bytes of payload, no further letter is
#: accepted. The same limit applies to letters that wait to be published again. So large messages
#: cannot fill the memory.
_MOST_BYTES = 64 << 20

#: The number of failures in succession after which a letter counts as stuck.
_STUCK = 3

#: Seconds between two warnings about letters that are published again.
_QUIET = 10.0


class Permits:
    """A counting semaphore that wakes its waiters when a quarter of its permits is free.

    If it woke a sender for every receipt, two threads would pass the interpreter's lock to and fro
    for each letter. A burst of sends, while other letters are still in flight, costs a fraction of
    that. Thread-safe. `release` never blocks for long, so pulsar-client's threads can call it.
    """

    def __init__(
        self, size: int, clock: Clock = SYSTEM, *, most_bytes: float = _MOST_BYTES
    ) -> None:
        """Make *size* permits. While letters of *most_bytes* in total have one, no other is free.

        So a letter larger than *most_bytes* gets a permit too, and the limit is exceeded by one
        letter at most.
        """
        self._clock = clock
        self._most_bytes = most_bytes
        self._bytes = 0
        self._size = size
        self._free = size
        # Threads that wait are woken when this many permits are free, not for each permit.
        self._wake_when_free = max(1, size // 4)
        self._waiting = 0
        # The lock itself is used in ``with``: it is C code; a condition's methods are Python.
        self._lock = threading.Lock()
        self._changed = clock.condition(self._lock)

    def acquire(self, size: int = 0, *, waits: bool = True) -> bool:
        """Take a permit for a letter of *size* bytes; tell whether there was one.

        Otherwise it *waits* until one is free.
        """
        with self._lock:
            while self._free == 0 or self._bytes >= self._most_bytes:
                if not waits:
                    return False
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            self._free -= 1
            self._bytes += size
            return True

    def release(self, count: int = 1, size: int = 0) -> None:
        """Give back *count* permits, for *size* bytes in total."""
        with self._lock:
            self._free += count
            self._bytes -= size
            if self._waiting and self._free >= self._wake_when_free:
                self._changed.notify_all()

    def wait_for_all(self, timeout: float) -> int:
        """Wait at most *timeout* seconds until all are given back; return how many are missing."""
        deadline = self._clock.monotonic() + timeout
        while self._free < self._size and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)
        return self._size - self._free


class HandOff:
    """Hands messages on to letters' topics, at most *max_pending* at a time. Thread-safe.

    While the letters in flight have 64 MiB of payload or more, a further letter waits too.

    If nobody waits for a letter that was not published, what happens to its message is already
    decided: a handler must not run again, and a redelivery would disturb the rest of its batch. So
    such a letter is published again after longer and longer delays (`Flight.keeps`). Its message is
    not acknowledged meanwhile. (If a caller waits for the letter, its message is redelivered, with
    the same delays: `InHand.come_back`.)

    Attributes:
        producers: The letters' producers.
        flights: The letters in flight, oldest first, as keys.
        waiting: The letters that wait to be published again, as keys. They have no permits.
        patience: The maximum number of seconds that a letter can be in flight.
        permits: Limits the letters in flight.
        clock: The clock.
        closed: Whether nothing is handed on any more.
    """

    def __init__(
        self,
        client: pulsar.Client,
        schema: Any,
        *,
        max_pending: int,
        send_timeout: float,
        dead_letter_subscription: str | None,
        come_back: Callable[[Any], None],
        handed_on: Callable[[Sequence[Flight]], None],
        timer: Timer,
        keep_writer_schema: bool = False,
        clock: Clock = SYSTEM,
        new_message: NewMessage = _pulsar.MessageBuilder,
        watch: Watch | None = None,
        encryption: tuple[str, Any] | None = None,
        natively: bool = False,
    ) -> None:
        """Make the hand-off of one consumer.

        Args:
            client: See `LetterProducers`.
            schema: The consumer's schema, which its letters have too.
            max_pending: The maximum number of letters in flight.
            send_timeout: Seconds after which a letter without a receipt has failed.
            dead_letter_subscription: See `LetterProducers`.
            come_back: Has a raw message redelivered that could not be handed on.
            handed_on: Called with flights that have succeeded, before their futures resolve.
            timer: The timer that checks letters without a receipt, and those that wait.
            keep_writer_schema: See `LetterProducers`.
            clock: The clock.
            new_message: Makes a builder of raw messages.
            watch: It is notified of what happens to messages; None: no notification.
            encryption: See `LetterProducers`.
            natively: Send in C++ where that can be had.
        """
        self.clock = clock
        self.closed = False
        self.flights: dict[Flight, bool] = {}
        self.waiting: dict[Flight, bool] = {}
        self.patience = send_timeout + _GRACE
        self.permits = Permits(max_pending, clock)
        self._room = Permits(max_pending, clock)  # of the letters that wait
        #: Publishes letters that must not block their callers, and publishes others again.
        self._worker = Worker("pulsar-retry-dead-letters", clock)
        self._keeps = True
        self._quiet_until = -math.inf
        self._come_back, self._handed_on = come_back, handed_on
        self._timer = timer
        self._check_is_scheduled = False
        self._watch = watch
        if watch is not None:
            watch.counters.attach(self)
        module = native().module if natively else None
        outcomes = None if module is None else NativeOutcomes(module, _finish)
        build = partial(build_letter, new_message)

        def new_sender(raw: Any) -> CallbackSender:
            if outcomes is None or type(raw) is not _pulsar.Producer:
                return CallbackSender(raw, build)
            return NativeSender(raw, build, outcomes)

        self.producers = LetterProducers(
            client,
            new_sender,
            send_timeout=send_timeout,
            schema=schema,
            dead_letter_subscription=dead_letter_subscription,
            keep_writer_schema=keep_writer_schema,
            clock=clock.monotonic,
            encryption=encryption,
        )
        #: Letters have a client of their own if a lost connection can be that of a refused letter.
        self._finds_refused = self.producers.client is not client
        self._check_interval = (
            min(self.patience, _CHECK_AFTER) if self._finds_refused else self.patience
        )
        self._alone = SingleFile(self.producers, build, clock)

    # -- the start of a flight --------------------------------------------------------------------

    def hand_on(self, flight: Flight) -> Future[None]:
        """Publish the letter of *flight*, then acknowledge its message.

        The call blocks while *max_pending* letters or 64 MiB are in flight, and while the first
        producer is opened.

        Returns:
            A future that resolves when the message is acknowledged. If the hand-off fails, also
            because a signal handler raises during the wait, the message is redelivered. Callbacks
            must not block: they run on pulsar-client's thread, the thread that takes outcomes, the
            timer's, or the caller's.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        try:
            self.permits.acquire(flight.size)
        except BaseException:
            self._come_back(flight.raw)
            raise
        self._start(flight)
        return flight.future

    def hand_on_elsewhere(self, flight: Flight) -> None:
        """Do what `hand_on` does, on another thread if it blocks.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """

        def hand_on() -> None:
            try:
                self.hand_on(flight)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                flight.future.set_exception(error)

        try:
            if self._gets_permit_now(flight):
                self._start(flight)
            elif not self._worker.submit(hand_on):
                raise ConsumerClosedError("the consumer is closed")
        except RuntimeError as error:  # no thread can be started
            self._fail(flight, error)

    def _gets_permit_now(self, flight: Flight) -> bool:
        """Take a permit for *flight*, if neither that nor its start blocks; tell whether it has."""
        producers = self.producers
        return (
            producers.knows_schema(flight.raw)
            and producers.outlet_of(flight).ready() is not None
            and self.permits.acquire(flight.size, waits=False)
        )

    def _start(self, flight: Flight) -> None:
        """Send the letter of *flight*, which has a permit."""
        if self.closed:
            self.permits.release(1, flight.size)
            raise ConsumerClosedError("the consumer is closed")
        self.flights[flight] = True
        try:
            if not self._check_is_scheduled:
                self._schedule_check(self._check_interval)
            context = flight.raw.encryption_context()
            if context is not None and context.is_decryption_failed():
                raise ConfigError(_UNREADABLE)  # noqa: TRY301 - it ends the flight, as others do
            outlet = self.producers.outlet_of(flight)
            sender = outlet.ready()
            if sender is None:
                outlet, sender = self.producers.open_for(flight, outlet)
            flight.outlet = outlet
            now = self.clock.monotonic()
            flight.deadline = now + self.patience
            flight.state = SENT
            if outlet.refusal is None or not outlet.is_suspect(flight):
                flight.sender = sender
                sender.send(flight)
            elif (answer := outlet.answer(flight, now)) is not None:
                self.finish([flight], answer)
            else:
                self._alone.add([flight])
        except Exception as error:  # noqa: BLE001 - the caller must get every error
            self.finish([flight], error)
        except BaseException as error:
            self.finish([flight], error)
            raise

    # -- the end of a flight ----------------------------------------------------------------------

    def finish(self, flights: list[Flight], cause: BaseException | None = None) -> None:
        """End *flights*, each once: nothing else does. Never raises.

        Without a *cause* their messages are acknowledged. Otherwise a message comes back, unless
        its letter is published again later. It handles many at once: an outcome handled alone would
        cost as much Python time as its letter.
        """
        ended: list[Flight] = []
        size = 0
        for flight in flights:
            if self.flights.pop(flight, False):  # otherwise another thread has ended it
                ended.append(flight)
                size += flight.size
        with ending():
            if cause is None:
                self._succeed(ended)
            else:
                for flight in ended:
                    self._fail(flight, cause)
        self.permits.release(len(ended), size)  # last, so that a waiting caller finds them all done

    def _succeed(self, flights: list[Flight]) -> None:
        if self._watch is not None:
            guarded(self._watch.handed_on, flights)
        guarded(self._handed_on, flights)
        for flight in flights:
            flight.state = DONE
            guarded(flight.future.succeed)

    def _fail(self, flight: Flight, cause: BaseException) -> None:
        is_out = flight.state == OUT
        if flight.state == SENT and flight.sender is not None and flight.sender.give_up(flight):
            is_out = True
        error = cause if isinstance(cause, SettleError) else _error_of(flight, cause, is_out=is_out)
        if flight.keeps and isinstance(error, LetterPublishError) and self._keep(flight, error):
            return
        try:
            self._come_back(flight.raw)
        except Exception:  # noqa: BLE001 - the caller can be C++
            _log.exception(
                "the redelivery of a message could not be requested; it will be redelivered when "
                "the consumer closes",
                extra=None if self._watch is None else self._watch.log_values(flight.raw),
            )
        self._report(flight, error)

    def _report(self, flight: Flight, error: Exception) -> None:
        """Tell the caller that a flight has failed. Never raises."""
        flight.state = DONE
        if self._watch is not None:
            guarded(self._watch.failed, flight, error)
        guarded(flight.future.set_exception, error)

    def not_published(self, flight: Flight, result: _pulsar.Result) -> None:
        """End a flight whose letter was refused or lost."""
        if result in PRODUCER_GONE and flight.sender is not None:
            flight.outlet.lost(flight.sender)
        self.finish([flight], refusal_of(result, flight.raw, flight.letter))

    # -- letters that are published again ---------------------------------------------------------

    def _keep(self, failed: Flight, error: LetterPublishError) -> bool:
        """Publish the letter of a flight again later; tell whether that is possible.

        As many letters can wait as can be in flight, and no further ones while those that wait have
        64 MiB of payload.
        """
        if not self._room.acquire(failed.size, waits=False):
            return False
        flight, now = failed.anew(), self.clock.monotonic()
        flight.failures = failed.failures + 1
        delay = COME_BACK.delay(flight.failures)
        flight.deadline = now + delay
        self.waiting[flight] = True
        try:
            self._timer.check_later(self, delay)
            is_kept = self._keeps  # last, because `stop_waiting` can run meanwhile
        except RuntimeError:
            _log.exception("no thread can be started to publish a letter again")
            is_kept = False
        if not is_kept:
            return not self._take(flight)  # otherwise `stop_waiting` has ended it
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET
            text = (
                "a letter was not published; publishing is repeated until it succeeds (%d letters "
                "are waiting): %s"
            )
            _log.log(level_of(error), text, len(self.waiting), error)
        return True

    def _take(self, flight: Flight) -> bool:
        """Take a flight from those that wait; tell whether it was one: who takes it, goes on."""
        is_mine = self.waiting.pop(flight, False)
        if is_mine:
            self._room.release(1, flight.size)
        return is_mine

    def _publish_later(self, flight: Flight, now: float) -> None:
        """Have the worker publish a letter again that is due."""
        try:  # a closed worker refuses it; `stop_waiting` ends it then
            self._worker.submit(partial(self._again, flight))
            flight.deadline = math.inf
        except RuntimeError:  # no thread can be started
            flight.deadline = now + COME_BACK.delay(flight.failures)

    def _again(self, flight: Flight) -> None:
        """Publish a letter again. Blocks as `hand_on` does."""
        self.permits.acquire(flight.size)
        if not self._take(flight):  # it was given up
            self.permits.release(1, flight.size)
            return
        try:
            self._start(flight.anew())
        except ConsumerClosedError as error:
            self._report(flight, error)

    @property
    def stuck(self) -> int:
        """How many waiting letters have failed repeatedly."""
        return sum(each.failures >= _STUCK for each in list(self.waiting))

    def stop_waiting(self) -> None:
        """Give up the letters that wait: the consumer closes, and their messages come back."""
        self._keeps = False
        for flight in list(self.waiting):
            if self._take(flight):
                text = "the consumer was closed before the letter could be published"
                self._report(flight, ConsumerClosedError(text))

    # -- letters without a receipt ----------------------------------------------------------------

    def check(self) -> None:
        """Give up letters without a receipt for too long, publish those due; the timer calls it."""
        now = self.clock.monotonic()
        self._check_is_scheduled = False  # first, so that an error does not end the checks
        for flight in list(self.flights):
            if flight.deadline <= now:
                self._give_up(flight)
        for flight in list(self.waiting):
            if flight.deadline <= now:
                self._publish_later(flight, now)
        pause = self._check_connections(now) if self._finds_refused else math.inf
        if left := [*list(self.flights), *list(self.waiting)]:
            first = min(each.deadline for each in left)
            self._schedule_check(min(first - now, pause))

    def _give_up(self, flight: Flight) -> None:
        """End a flight that has no receipt. Letters behind it in its producer fail too.

        pulsar-client sends a message that the broker refuses again and again, beyond its own
        time-out, and never sends anything behind it.
        """
        sender = flight.sender
        is_silent = sender is not None and not sender.give_up(flight)
        if is_silent:
            flight.outlet.lost(sender)
        elif sender is not None:
            flight.state = OUT
        self.finish([flight], error_of(_pulsar.Result.Timeout))
        if is_silent:
            sender.abandon()

    def _check_connections(self, now: float) -> float:
        """Find producers whose connection the broker closes again and again, because of one letter.

        A consumer that is still connected shows that the broker is reachable. Then the letters of
        the producer go out one in flight at a time, to find the one that the broker refuses.

        Returns:
            Seconds until the next check.
        """
        oldest: dict[CallbackSender, Flight] = {}
        pause = self._check_interval if self.flights else math.inf
        for flight in list(self.flights):
            if flight.sender is not None and flight.state == SENT:
                oldest.setdefault(flight.sender, flight)
        for sender, flight in oldest.items():
            if now < flight.deadline - self.patience + _CHECK_AFTER:
                continue
            pause = _CHECK_AGAIN
            if sender.oldest != flight.deadline:
                sender.oldest, sender.lost = flight.deadline, 0
            if not sender.raw.is_connected() and flight.source.is_connected():
                sender.lost += 1
            if sender.lost >= _LOST:
                self._take_from(sender)
        return pause

    def _take_from(self, sender: CallbackSender) -> None:
        """Take the letters without a receipt out of *sender*, and send one at a time."""
        taken: list[Flight] = []
        for flight in list(self.flights):
            if flight.sender is not sender:
                continue
            flight.outlet.lost(sender)
            if sender.give_up(flight):
                continue  # a receipt is there: its outcome will end it
            if self.flights.pop(flight, False):  # otherwise it has ended
                anew = flight.anew()
                anew.outlet, anew.state, anew.deadline = flight.outlet, SENT, flight.deadline
                self.flights[anew] = True
                taken.append(anew)
        sender.abandon()  # last, because its results for these letters no longer count
        if taken:
            try:
                self._alone.add(taken)
            except Exception as error:  # noqa: BLE001 - no thread can be started, or it is closed
                self.finish(taken, error)

    def _schedule_check(self, delay: float) -> None:
        if not self._check_is_scheduled:
            self._timer.check_later(self, min(delay, self.patience))
            self._check_is_scheduled = True

    # -- closing ----------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """Return the current values for the metrics."""
        return {"letters_inflight": float(self.in_flight)}

    @property
    def in_flight(self) -> int:
        """How many letters are in flight, or wait to be published again."""
        return len(self.flights) + len(self.waiting)

    def stop(self) -> None:
        """Refuse new letters."""
        self.closed = True
        if self._watch is not None:
            self._watch.counters.detach(self)

    def close(self, until: float) -> list[Callable[[], None]]:
        """Wait for letters in flight; return functions that close the producers, and may block.

        It waits no longer than *until*, by the monotonic clock.
        """
        now = self.clock.monotonic
        self.stop_waiting()
        self._worker.close(until - now())
        self.stop()
        if left := self.drain(until - now()):
            _log.warning("%d letters have no receipt; their originals will come back", left)
        self._alone.close()
        return self.producers.closing()

    def give_up(self) -> None:
        """Refuse new letters and fail those in flight."""
        self.stop()
        self.stop_waiting()
        self.finish(list(self.flights), error_of(_pulsar.Result.AlreadyClosed))
        self._worker.close(0.0)
        self._alone.close()

    def drain(self, most: float = math.inf) -> int:
        """Wait for the letters in flight, for the maximum time of one; return how many are left.

        It waits no longer than *most* seconds.
        """
        return self.permits.wait_for_all(min(self.patience + 1, most))


def _error_of(flight: Flight, cause: BaseException, *, is_out: bool) -> SettleError:
    error: SettleError
    if is_out:
        error = AcknowledgeError(
            f"the letter is in {flight.letter.topic}, but the original was not acknowledged "
            f"and will be delivered again: {cause}"
        )
    else:
        error = LetterPublishError(flight.letter.topic, cause)
    error.__cause__ = cause
    return error


def _finish(flights: list[Flight]) -> None:
    """End flights that have succeeded in C++; this function keeps no hand-off alive."""
    flights[0].hand_off.finish(flights)
