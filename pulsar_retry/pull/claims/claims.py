"""The claims of one process: which messages may begin, and which are suspects."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pulsar

from pulsar_retry.errors import shown
from pulsar_retry.pull.claims.topic import REWRITE_AFTER, ClaimTopic
from pulsar_retry.pull.rules.claims import Record, TopicClaims

_log = logging.getLogger("pulsar_retry")

Wake = Callable[[], object]

#: Seconds after which a record is written that says which handlers have ended.
_TIDY_AFTER = 1.0

#: Seconds between two records of a process that handles a suspect, and of silence after which
#: another one looks whether it still lives.
_BEAT, _SILENT = 1.0, 3.0

#: Seconds between two looks at the same process.
_LOOK = 1.0

#: A look counts for the grace of a process if it follows the one before within these seconds.
_STALE = 10.0

#: Each process writes so rarely that all of them together write a thousand records a second.
_SECONDS_PER_PROCESS = 0.001

#: How many messages are claimed ahead at most.
_MOST = 512

#: The topic is shortened after so many messages.
_TRIM_AFTER = 2000

#: Seconds that the last record has, from when the subscriber is asked to stop.
_FAREWELL = 5.0


class Claims:
    """The claims of one process in the topic of its subscription. Thread-safe.

    One record at a time is under way, with everything that is in hand and much of what will be
    soon. When it was read again, all earlier records of other processes were read, too. So the
    handlers of its messages may begin, unless dead processes have claimed them as well.

    Messages are named by `Facts.chain`. So a dead letter that is redriven is another message, but
    one that comes again, because its acknowledgement was lost or its batch was not complete, is the
    same: the claims of a message stay when it is dead-lettered.
    """

    def __init__(
        self,
        topic: ClaimTopic,
        spec: TopicClaims,
        ahead: Callable[[], Iterable[str]],
        adapt: Callable[[int], None],
    ) -> None:
        """Start two threads, which read and write the topic.

        Args:
            topic: The topic.
            spec: The times.
            ahead: Returns the messages whose handlers begin next.
            adapt: Called with the number of messages that should be received ahead.
        """
        self._topic = topic
        self._spec = spec
        self._ahead, self._adapt = ahead, adapt
        self._cond = threading.Condition()
        self._hand: Counter[str] = Counter()
        self._waiting: dict[str, list[Wake]] = {}
        self._covered: frozenset[str] = frozenset()  # by the last record that was read again
        self._pending: frozenset[str] | None = None  # by the record that is under way
        self._accusers: dict[str, tuple[Record, ...]] = {}
        self._alone: str | None = None
        self._turn: Wake | None = None
        self._turns = 0
        self._has_turn = 0  # its number
        self._blockers: set[tuple[str, int]] | None = None
        self._left: list[Wake] = []
        self._later: list[tuple[float, Wake]] = []
        self._gone: dict[str, tuple[float, float]] = {}  # since when, and when it was seen last
        self._alive: dict[str, float] = {}
        self._begun = 0
        self._written = self._read = 0
        self._written_at = 0.0
        self._is_dirty = self._is_untidy = self._is_empty = False
        self._has_failed = self._is_quiet = self._is_closed = False
        self._is_late = False
        self._until = 0.0
        self._threads = [
            threading.Thread(target=run, name=f"pulsar-retry-claims-{name}", daemon=True)
            for name, run in (("reader", self._follow), ("writer", self._run))
        ]
        for thread in self._threads:
            thread.start()

    # -- what a guard asks ------------------------------------------------------------------------

    def claim_at_once(self, message: str) -> bool:
        """Claim *message* if its handler may begin now; tell whether it may."""
        with self._cond:
            if not self._may_begin(message):
                return False
            self._hand[message] += 1
            self._begun += 1
            return True

    def claim(self, message: str, wake: Wake) -> bool:
        """Claim *message*; tell whether its handler may begin. If not, *wake* is called."""
        with self._cond:
            self._hand[message] += 1
            self._begun += 1
            if self._may_begin(message):
                return True
            self._waiting.setdefault(message, []).append(wake)
            self._change()
            return False

    def accusers(self, message: str) -> tuple[Record, ...]:
        """Return the claims of other processes for *message* that have no connection."""
        with self._cond:
            return self._accusers.get(message, ())

    def is_certain(self, accusers: Iterable[Record]) -> bool:
        """Tell whether these processes had the time to connect again."""
        now = time.monotonic()
        with self._cond:
            since = [self._gone.get(each.process, (now, now))[0] for each in accusers]
        return all(now - each >= self._spec.grace for each in since)

    def look_later(self, wake: Wake) -> bool:
        """Have *wake* called when it is time to look at dead processes again."""
        with self._cond:
            if self._is_quiet:
                return True
            self._later.append((time.monotonic() + min(_LOOK, self._spec.grace), wake))
            self._cond.notify_all()
            return False

    def drop(self, message: str) -> None:
        """Take the claim back without settling those of others: the handler has not begun."""
        with self._cond:
            self._take(message)

    def settle(self, message: str) -> None:
        """Settle all claims for *message*, because its handler has ended."""
        with self._cond:
            self._take(message)
            accusers = self._accusers.pop(message, ()) if not self._hand[message] else ()
        for each in accusers:
            self._topic.settle(each.process, message)

    def take_turn(self, wake: Wake) -> bool:
        """Ask for the turn to handle a suspect; *wake* is called when this process has it."""
        with self._cond:
            if self._is_quiet:
                return True
            self._turns += 1
            self._turn, self._has_turn, self._blockers = wake, self._turns, None
            self._change()
            return False

    def isolate(self, message: str, wake: Wake) -> bool:
        """Claim that *message* is handled alone; *wake* is called when that is stored."""
        with self._cond:
            if self._is_quiet:
                return True
            self._alone = message
            self._waiting.setdefault(message, []).append(wake)
            self._change()
            return False

    def rejoin(self, then: Wake) -> None:
        """Give the turn back; *then* is called when it is stored that nothing is alone any more."""
        with self._cond:
            self._alone, self._has_turn, self._turn = None, 0, None
            if not self._is_quiet:
                self._left.append(then)
                self._change()
                return
        then()

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words."""
        if not self._is_late:
            return []
        return [f"claims cannot be stored on {self._topic.name}: crashes are not counted"]

    def withdraw(self) -> None:
        """Withdraw all claims, and make no more: the process may end soon, and that is no crash."""
        with self._cond:
            if self._is_quiet:
                return
            self._is_quiet = True
            self._until = time.monotonic() + _FAREWELL
            self._hand.clear()
            woken = self._release()
            self._alone, self._has_turn, self._turn = None, 0, None
            self._is_dirty = True
            self._cond.notify_all()
        for wake in woken:
            wake()

    def close(self) -> None:
        """Withdraw all claims, and close the topic."""
        self.withdraw()
        with self._cond:
            while (left := self._until - time.monotonic()) > 0:
                if self._is_late or (not self._is_dirty and self._pending is None):
                    break
                self._cond.wait(left)
            self._is_closed = True
            self._cond.notify_all()
        for thread in self._threads:
            thread.join(_FAREWELL)
        self._topic.close()

    # -- under the lock ---------------------------------------------------------------------------

    def _may_begin(self, message: str) -> bool:
        if self._is_quiet:
            return True
        if message in self._accusers:
            return False  # who has died is looked at again
        if message in self._covered and (self._pending is None or message in self._pending):
            return True
        return self._is_late

    def _take(self, message: str) -> None:
        self._hand[message] -= 1
        if self._hand[message] <= 0:
            del self._hand[message]
        self._is_untidy = True

    def _change(self) -> None:
        self._is_dirty = True
        self._cond.notify_all()

    def _release(self) -> list[Wake]:
        """Return all that wait, because they need not wait any longer."""
        woken = [each for waiting in self._waiting.values() for each in waiting]
        woken += [wake for _, wake in self._later]
        woken += self._left
        woken += [] if self._turn is None else [self._turn]
        self._waiting.clear()
        self._later.clear()
        self._left.clear()
        return woken

    def _is_due(self) -> bool:
        if self._is_dirty:
            return True
        age = time.monotonic() - self._written_at
        if self._is_quiet:
            return False
        return (
            (self._is_untidy and age > _TIDY_AFTER)
            or (self._has_turn and age > _BEAT)
            or (not self._is_empty and age > REWRITE_AFTER)
        )

    # -- the writing thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._cond:
                if not self._is_closed and not self._is_due():
                    self._cond.wait(0.1 if self._turn or self._later else 0.5)
                if self._is_closed:
                    return
                is_due = self._is_due()
            try:
                if is_due:
                    self._commit()
                self._tick(time.monotonic())
                if self._topic.since_trim >= _TRIM_AFTER:
                    self._topic.trim(self._spec.keep)
                    self._forget_strangers()
            except Exception:  # noqa: BLE001 - handlers wait for this thread
                _log.exception("claims on %s could not be written", self._topic.name)
                time.sleep(1)

    def _commit(self) -> None:
        """Write a record, wait until it was read again, and let its messages begin."""
        ahead = () if self._is_quiet else self._ahead()
        with self._cond:
            alone = self._alone
            if self._is_quiet or alone is not None:
                hand = [] if alone is None else [alone]
            else:
                known = self._hand.keys() | self._accusers.keys()
                hand = [*self._hand, *(each for each in ahead if each not in known)]
            self._is_dirty = self._is_untidy = self._has_failed = False
            self._is_empty = not hand and not self._has_turn
            begun, self._begun = self._begun, 0
            has_turn, left, self._left = self._has_turn, self._left, []
            self._pending = frozenset(hand)
            self._written += 1
            number, self._written_at = self._written, time.monotonic()
        record = Record.of(
            self._topic.me,
            hand,
            at=time.time(),
            host=socket.gethostname(),
            pid=os.getpid(),
            alone=alone,
            turn=has_turn,
        )
        self._topic.publish(b"" if self._is_empty else record.data, number, self._failed)
        if not self._await_stored(number):
            with self._cond:
                self._left = left + self._left
                self._pending = None
                self._is_dirty = True
            return
        accusers = self._accused_by_the_gone(hand)
        with self._cond:
            self._covered, self._pending, self._accusers = frozenset(hand), None, accusers
            woken = [each for key in hand for each in self._waiting.pop(key, ())]
            if has_turn == self._has_turn != 0 and self._blockers is None:
                with self._topic.lock:
                    self._blockers = self._topic.book.turns()
            self._cond.notify_all()
        for wake in [*left, *woken]:
            wake()
        self._adapt(min(_MOST, 2 * begun))
        self._pace()

    def _await_stored(self, number: int) -> bool:
        """Wait until a record was read again; tell whether it was. Without end, unless closed."""
        with self._cond:
            until = self._written_at + self._spec.wait
            while self._read < number and not self._is_closed and not self._has_failed:
                self._cond.wait(0.5)
                if not self._is_late and time.monotonic() > until and self._read < number:
                    self._begin_late()
            if self._read >= number:
                if self._is_late:
                    _log.info("claims are stored on %s again", self._topic.name)
                self._is_late = False
                return True
            if self._has_failed and not self._is_late:
                self._begin_late()
        if not self._is_closed:
            time.sleep(_LOOK)
        return False

    def _begin_late(self) -> None:
        """Let handlers begin without claims, except those of suspects."""
        self._is_late = True
        text = (
            "claims cannot be stored on %s for %g s: handlers begin without claims, and their "
            "crashes are not counted"
        )
        _log.warning(text, self._topic.name, self._spec.wait)
        for key in [each for each in self._waiting if each not in self._accusers]:
            if key != self._alone:
                for wake in self._waiting.pop(key):
                    wake()

    def _pace(self) -> None:
        with self._topic.lock:
            least = _SECONDS_PER_PROCESS * len(self._topic.book.records)
        pause = least - (time.monotonic() - self._written_at)
        if pause > 0:
            time.sleep(min(pause, 1.0))

    def _failed(self) -> None:
        with self._cond:
            self._has_failed = True
            self._cond.notify_all()

    def _tick(self, now: float) -> None:
        """Do what is due at certain times."""
        with self._cond:
            due = [wake for at, wake in self._later if at <= now]
            self._later = [each for each in self._later if each[0] > now]
            blockers, turn = self._blockers, self._turn
        for wake in due:
            wake()
        if turn is None or blockers is None:
            return
        with self._topic.lock:
            blockers &= self._topic.book.turns()
        for each in list(blockers):
            if self._topic.silent_for(each[0]) > _SILENT and self._is_gone(each[0]):
                blockers.discard(each)
        if not blockers:
            with self._cond:
                is_mine, self._turn = self._turn is turn, None
            if is_mine:
                turn()

    # -- who has died -----------------------------------------------------------------------------

    def _accused_by_the_gone(self, hand: Iterable[str]) -> dict[str, tuple[Record, ...]]:
        wanted = {*hand, *self._hand, *self._accusers}
        with self._topic.lock:
            found = self._topic.book.accusers(wanted)
        if not found:
            return {}
        oldest = time.time() - self._spec.keep
        accusers = {}
        for message, records in found.items():
            gone = tuple(
                each for each in records if each.at > oldest and self._is_gone(each.process)
            )
            if gone:
                accusers[message] = gone
        return accusers

    def _is_gone(self, process: str) -> bool:
        """Tell whether *process* has no connection now; what was seen just now is still valid."""
        now = time.monotonic()
        since, seen = self._gone.get(process, (now, -_STALE))
        if now - seen < _LOOK:
            return True
        if now - seen > _STALE:  # it may have been connected meanwhile
            since = now
        if now - self._alive.get(process, -_LOOK) < _LOOK:
            return False
        answer = self._topic.is_gone(process)
        with self._cond:
            if answer:
                self._gone[process] = (since, time.monotonic())
                return True
            self._gone.pop(process, None)
            if answer is None:  # the broker does not answer, so nobody could connect
                self._gone.clear()
            else:
                self._alive[process] = time.monotonic()
        return False

    def _forget_strangers(self) -> None:
        with self._topic.lock:
            known = set(self._topic.book.records)
        with self._cond:
            for seen in (self._gone, self._alive):
                for each in seen.keys() - known:
                    del seen[each]

    # -- the reading thread -----------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._is_closed:
            try:
                found = self._topic.read()
            except pulsar.PulsarException as error:
                if not self._is_closed:
                    text = "claims on %s could not be read: %s"
                    _log.warning(text, self._topic.name, shown(error))
                    time.sleep(1)
                continue
            if found is None:
                continue
            process, number = found
            with self._cond:
                if number is not None:
                    self._read = max(self._read, number)
                    self._cond.notify_all()
                elif process == self._topic.me:  # another process has taken this one for dead
                    self._is_dirty = True
                    self._cond.notify_all()
                elif self._turn is not None:
                    self._cond.notify_all()
