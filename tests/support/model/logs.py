"""Checks that the ledger of a fault test is a behaviour of the model, message by message.

A ledger has the deliveries, the retries that were requested, the completions and the dead letters.
What the broker did between them is not in it, so it is assumed: redeliveries, letters that were
stored twice, and acknowledgements that were forgotten. Nothing else may be assumed. So a log is
refused, for example, if a letter is delivered that nobody has requested.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from support.appended import whole_lines
from support.model.machine import Machine, Work
from support.model.witness import NotABehaviourError, Witness

#: More than any log has.
_MANY = 10_000


class Entry(NamedTuple):
    """One line about a message.

    Attributes:
        event: What happened.
        process: The process that wrote it.
        place: "main", "retry" or "dlq"; "" if the line does not name the copy.
        count: The retries that the copy has behind it.
        copy: The id of the copy.
    """

    event: str
    process: str
    place: str = ""
    count: int = 0
    copy: str = ""


def read(path: Path) -> dict[int, list[Entry]]:
    """Return the entries of each message of a ledger."""
    found = defaultdict[int, list[Entry]](list)
    for line in whole_lines(path):
        event, number, *rest = line.split()
        match rest:
            case [process, place, count, copy]:
                found[int(number)].append(Entry(event, process, place, int(count), copy))
            case [process]:
                found[int(number)].append(Entry(event, process))
    return found


def check_log(path: Path, *, retries: int) -> Counter[str]:
    """Check the ledger at *path*; return which actions were assumed, and how often.

    A message is left out if an entry does not name its copy, as those of push endpoints, or if its
    producer has stored it twice. "messages" counts those that were checked.

    Raises:
        NotABehaviourError: the model does not allow what happened to a message.
    """
    assumed: Counter[str] = Counter()
    for number, entries in read(path).items():
        known = [each for each in entries if each.event != "sent"]
        mains = {each.copy for each in known if each.place == "main"}
        if len(mains) != 1 or any(not each.copy for each in known):
            continue
        try:
            assumed.update(dict(_behaviour(_canonical(known), retries)))
        except NotABehaviourError as error:
            raise NotABehaviourError(f"message {number}: {error}; {known}") from None
        assumed["messages"] += 1
    return assumed


def _canonical(entries: list[Entry]) -> tuple[Entry, ...]:
    """Return the entries with short names, so that equal behaviours are checked once."""
    names: dict[str, str] = {}
    for each in entries:
        for name in (each.process, each.copy):
            names.setdefault(name, str(len(names)))
    return tuple(
        each._replace(process=names[each.process], copy=names[each.copy]) for each in entries
    )


@lru_cache(10_000)
def _behaviour(entries: tuple[Entry, ...], retries: int) -> tuple[tuple[str, int], ...]:
    """Find a behaviour of the model with these entries; return what had to be assumed.

    Where the log leaves a choice, all possibilities are tried, the likely ones first.
    """
    first: NotABehaviourError | None = None
    choices = _Choices()
    for _ in range(_MANY):
        try:
            log = _Log(entries, retries, choices)
            for each in entries:
                log.follow(each)
            log.finish()
        except NotABehaviourError as error:
            first = first or error
            if not choices.next():
                break
        else:
            return tuple(log.witness.hidden.items())
    raise first or NotABehaviourError("nothing was tried")


class _Choices:
    """Goes through all combinations of choices, one combination per run."""

    def __init__(self) -> None:
        self._made: list[tuple[int, int]] = []
        self._place = 0

    def among(self, options: list[int | None]) -> int | None:
        """Return one of *options*; the runs together try each."""
        if self._place == len(self._made):
            self._made.append((0, len(options)))
        self._place += 1
        return options[self._made[self._place - 1][0]]

    def next(self) -> bool:
        """Prepare the next run; return False if all combinations were tried."""
        self._place = 0
        while self._made:
            chosen, count = self._made.pop()
            if chosen + 1 < count:
                self._made.append((chosen + 1, count))
                return True
        return False


class _Log:
    """The behaviour so far. Each delivery is one consumer of the model: none remembers anything."""

    def __init__(self, entries: tuple[Entry, ...], retries: int, choices: _Choices) -> None:
        first = next(each.copy for each in entries if each.place == "main")
        machine = Machine(
            consumers=tuple(f"d{each}" for each in range(len(entries))),
            max_retries=retries,
            max_redrives=0,
            max_copies=_MANY,
            max_faults=_MANY,
            window=False,
            own=False,
            remembers=True,
            faults=frozenset({"lose", "redeliver", "forget", "reject"}),
        )
        self.witness = Witness(machine, first)
        self._free = iter(machine.consumers)
        self._choices = choices
        # The deliveries of each copy to each process that have not ended. A copy that is delivered
        # again while it is handled has several.
        self._working: dict[tuple[str, str], list[str]] = {}
        # Letters that appear in the log, and those that were published and have no id yet.
        self._letters = Counter(
            each.count
            for each in {(e.count, e.copy): e for e in entries if e.place == "retry"}.values()
        )
        self._unnamed = defaultdict[int, list[int]](list)
        # What each process remembers of the message: how many of its attempts have failed.
        self._failures = Counter[str]()
        self._retries = retries
        self._dead_left = sum(each.event == "dead" for each in entries)

    def follow(self, entry: Entry) -> None:
        """Perform the actions of an entry."""
        if entry.event == "dead":
            self._dead(entry)
            return
        where = (entry.process, entry.copy)
        if entry.event == "delivered" or where not in self._working:
            self._name(entry)
            worker = next(self._free)
            self._working.setdefault(where, []).append(worker)
            self.witness.delivered(worker, entry.copy)
        if entry.event == "delivered":
            return
        if not self._working[where]:
            raise NotABehaviourError(f"{entry} is a second decision about one delivery")
        worker = self._working[where].pop(0)
        if entry.event == "retried":
            count = self._count_of_letter(entry)
            self.witness.failed(worker, entry.copy, count=count)
            if count is not None and self._letters[count] > 0:
                self._publish(worker, self.witness.number(entry.copy))
        elif entry.event == "processed":
            self.witness.act("succeed", worker, self.witness.number(entry.copy))

    def _count_of_letter(self, entry: Entry) -> int | None:
        """Return the count of the letter that was requested for a copy; None: a dead letter.

        It is one more than that of the copy. A subscriber also counts the failures of other copies
        of the message that it remembers, at most all of its process. The letters in the log tell
        which counts are possible.
        """
        most = self._failures[entry.process] = max(entry.count, self._failures[entry.process]) + 1
        counts = range(entry.count + 1, min(most, self._retries) + 1)
        possible: list[int | None] = [count for count in counts if self._letters[count] > 0]
        if most > self._retries and self._dead_left:
            possible.append(None)
        return self._choices.among(possible or [entry.count + 1])

    def _publish(self, worker: str, k: int) -> int:
        """Publish a letter that has no id yet."""
        work = self.witness.state.work(worker, k)
        self.witness.act("publish", worker, k)
        number = len(self.witness.state.copies)
        if work is not None and work.letter.place == "retry":
            self._letters[work.letter.count] -= 1
            self._unnamed[work.letter.count].append(number)
        return number

    def _name(self, entry: Entry) -> None:
        """Find the letter of the model for a letter that the log has not named before."""
        if entry.copy in self.witness.numbers:
            return
        if not self._unnamed[entry.count]:
            for worker, work in self._works("sent"):
                if work.letter.place == "retry" and work.letter.count == entry.count:
                    self.witness.assume("again", worker, work.k)
                    self._publish(worker, work.k)
                    break
            else:
                raise NotABehaviourError(f"nobody has requested the letter {entry}")
        self.witness.numbers[entry.copy] = self._unnamed[entry.count].pop(0)

    def _works(self, phase: str) -> list[tuple[str, Work]]:
        return [
            (name, work)
            for name, process in self.witness.state.processes
            for work in process.work
            if work.phase == phase
        ]

    def _dead(self, entry: Entry) -> None:
        """Find who has published a dead letter."""
        witness = self.witness
        self._dead_left -= 1
        for worker, work in self._works("publish"):
            if work.letter.place == "dlq":
                self._publish(worker, work.k)
                return
        for worker, work in self._works("got"):
            if witness.state.copy(work.k).letter.count == entry.count:
                copy = next(name for name, k in witness.numbers.items() if k == work.k)
                witness.failed(worker, copy, count=None)
                self._publish(worker, work.k)
                return
        # The consumer has found that its deliveries were used up, or its letter is there twice.
        for worker, work in self._works("sent"):
            if work.letter.place == "dlq" and entry.count in {work.letter.count, self._retries}:
                witness.assume("again", worker, work.k)
                self._publish(worker, work.k)
                return
        for copy, k in list(witness.numbers.items()):
            if witness.state.copy(k).letter.count == entry.count:
                worker = next(self._free)
                witness.delivered(worker, copy)
                witness.failed(worker, copy, count=None)
                self._publish(worker, k)
                return
        raise NotABehaviourError(f"nobody has requested the dead letter {entry}")

    def finish(self) -> None:
        """Let everything end that is under way, and check that the message has ended."""
        for worker, work in self._works("sent"):
            self.witness.act("receipt", worker, work.k)
        for worker, work in self._works("acking"):
            self.witness.act("acknowledged", worker, work.k)
        state = self.witness.state
        dead = any(each.letter.place == "dlq" for each in state.copies)
        if not dead and not state.ended[0]:
            raise NotABehaviourError("the message has not ended")
