"""The state machine of tests/model/HandOff.tla in Python: the same variables, actions and names.

`tests/model` compares the two graphs, state by state. So what this machine accepts is a behaviour
of the model, and logs can be checked without a JVM (`support.model.witness`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import attrs

REDRIVER = "r"

#: All kinds of faults.
FAULTS = frozenset({"refuse", "lose", "kill", "redeliver", "forget"})


class Letter(NamedTuple):
    """What is published, and, with a place at the broker, a copy of the message."""

    place: str = ""
    count: int = 0
    gen: int = 0
    depth: int = 0
    stamp: int = 0


class Copy(NamedTuple):
    """A copy that was stored, and where it is: delayed, stored, acked, or at a process."""

    letter: Letter
    at: str


class Work(NamedTuple):
    """What a process does with a copy."""

    k: int
    phase: str
    letter: Letter = Letter()


class Own(NamedTuple):
    """What a subscriber's process remembers of the letters that it has published."""

    failures: int = 0
    stamp: int = 0
    issued: int = 0


class Seen(NamedTuple):
    """A letter in hand; *twins* are the equal letters that existed when it came."""

    k: int
    ordered: bool
    twins: frozenset[int]


class Process(NamedTuple):
    """A consumer, or the redriver."""

    work: frozenset[Work] = frozenset()
    seen: frozenset[Seen] = frozenset()
    known: frozenset[int] = frozenset()
    handled: frozenset[Seen] = frozenset()
    own: Own = Own()
    up: bool = True


class State(NamedTuple):
    """A state: the copies by number from 1, the processes by name, and by generation."""

    copies: tuple[Copy, ...]
    processes: tuple[tuple[str, Process], ...]
    ended: tuple[bool, ...]
    runs: tuple[int, ...]
    faults: int = 0

    def process(self, name: str) -> Process:
        """Return a process."""
        return dict(self.processes)[name]

    def work(self, name: str, k: int) -> Work | None:
        """Return what a process does with a copy; None: nothing."""
        return next((each for each in self.process(name).work if each.k == k), None)

    def copy(self, k: int) -> Copy:
        """Return a copy by its number."""
        return self.copies[k - 1]

    def alive(self, k: int) -> bool:
        """Tell whether the broker still has a copy."""
        return self.copy(k).at != "acked"


class RefusedError(Exception):
    """The machine does not allow this action in this state."""


@attrs.frozen
class Machine:
    """The machine and its constants. An action returns the next state, or raises `RefusedError`.

    Without *own*, processes remember nothing. With *remembers* they may count more failures than
    the copy that they handle: this is for logs, which know how many failures a process has seen.
    """

    consumers: tuple[str, ...] = ("c1", "c2")
    max_retries: int = 1
    max_redrives: int = 1
    max_copies: int = 14
    max_faults: int = 1
    window: bool = True
    own: bool = True
    remembers: bool = False
    faults: frozenset[str] = FAULTS

    def initial(self) -> State:
        """Return the first state: the message is in its topic."""
        gens = self.max_redrives + 1
        names = (*self.consumers, REDRIVER)
        first = Copy(Letter("main"), "stored")
        return State((first,), tuple((n, Process()) for n in names), (False,) * gens, (0,) * gens)

    # -- delivery ---------------------------------------------------------------------------------

    def due(self, state: State, k: int) -> State:
        """The broker delivers a letter when its delay is over."""
        _require(state.copy(k).at == "delayed")
        return _at(state, k, "stored")

    def deliver(self, state: State, p: str, k: int, phase: str) -> State:
        """The broker delivers a copy; the process handles it ("got"), or it drops it."""
        copy, process = state.copy(k), state.process(p)
        _require(p != REDRIVER and process.up and copy.at == "stored")
        _require(copy.letter.place != "dlq" and state.work(p, k) is None)
        _require(phase != "drop" or self.is_duplicate(state, p, k))
        _require(phase != "supersede" or self.is_superseded(state, p, k))
        if self.window and _is_recognizable(copy):
            seen = process.seen
            if phase != "drop" and all(each.k != k for each in seen):
                seen |= {Seen(k, ordered=True, twins=_twins(state, k))}
            process = process._replace(known=process.known | {k}, seen=seen)
        process = process._replace(work=process.work | {Work(k, phase)})
        return _with(_at(state, k, p), p, process)

    def is_duplicate(self, state: State, p: str, k: int) -> bool:
        """Tell whether the window of a process drops a copy."""
        process = state.process(p)
        return (
            self.window
            and _is_recognizable(state.copy(k))
            and k not in process.known
            and any(_equal(state, s.k, k) and k in s.twins for s in process.handled)
        )

    def is_superseded(self, state: State, p: str, k: int) -> bool:
        """Tell whether a process drops a copy for a newer letter of its own."""
        letter, own = state.copy(k).letter, state.process(p).own
        return (
            self.own
            and _is_recognizable(state.copy(k))
            and letter.count <= own.failures
            and letter.stamp < own.stamp
        )

    # -- handling ---------------------------------------------------------------------------------

    def skip(self, state: State, p: str, k: int) -> State:
        """A superfluous letter is only acknowledged."""
        work = _work(state, p, k, "drop", "supersede")
        process = state.process(p)
        if work.phase == "supersede":
            seen = frozenset(each for each in process.seen if each.k != k)
            process = process._replace(seen=seen)
        else:
            process = _settled(process, k)
        return _with(state, p, _set(process, work, work._replace(phase="acking")))

    def succeed(self, state: State, p: str, k: int) -> State:
        """The handler succeeds."""
        work = _work(state, p, k, "got")
        process = _settled(state.process(p), k)
        ended = _changed(state.ended, state.copy(k).letter.gen, value=True)
        state = state._replace(ended=ended)
        return _with(state, p, _set(process, work, work._replace(phase="acking")))

    def stamps(self, state: State, p: str, k: int) -> set[int]:
        """Return the stamps of letters that the search tries: the least one, and a later one."""
        least = max(state.copy(k).letter.stamp, state.process(p).own.issued) + 1
        known = [each.letter.stamp for each in state.copies]
        known += [each.own.issued for _, each in state.processes]
        return {least, max(least, max(known) + 1)}

    def fail(
        self, state: State, p: str, k: int, before: int, stamp: int, *, reject: bool = False
    ) -> State:
        """The handler fails, and the letter is made.

        *before* is how many earlier failures the process counts. With *reject* no retry helps.
        """
        work, process = _work(state, p, k, "got"), state.process(p)
        copy, own = state.copy(k).letter, process.own
        if self.own and copy.gen == 0:
            _require(before in {copy.count, max(copy.count, own.failures)})
            _require(stamp > max(copy.stamp, own.issued))
            own = own._replace(failures=max(own.failures, before + 1), issued=stamp)
        else:
            _require(before == copy.count or (self.remembers and before > copy.count))
            _require(not stamp)
        is_dead = reject or before + 1 > self.max_retries
        count = copy.count if is_dead else before + 1
        letter = Letter("dlq" if is_dead else "retry", count, copy.gen, copy.depth + 1, stamp)
        most = self.max_retries + 1
        runs = most if reject else min(state.runs[copy.gen] + 1, most)
        state = state._replace(runs=_changed(state.runs, copy.gen, runs))
        process = process._replace(own=own)
        return _with(state, p, _set(process, work, Work(k, "publish", letter)))

    def _failures(self, state: State, p: str, k: int) -> Iterator[tuple[int, int]]:
        """Yield the arguments of `fail` that the search tries."""
        copy, own = state.copy(k).letter, state.process(p).own
        if self.own and copy.gen == 0:
            for before in {copy.count, max(copy.count, own.failures)}:
                for stamp in self.stamps(state, p, k):
                    yield before, stamp
        else:
            yield copy.count, 0

    def redrive(self, state: State, k: int) -> State:
        """A redrive takes a dead letter, unless it was redriven too often."""
        copy, process = state.copy(k), state.process(REDRIVER)
        _require(copy.letter.place == "dlq" and copy.at == "stored")
        _require(state.work(REDRIVER, k) is None and copy.letter.gen < self.max_redrives)
        work = Work(k, "publish", Letter("retry", 0, copy.letter.gen + 1))
        state = _at(state, k, REDRIVER)
        return _with(state, REDRIVER, process._replace(work=process.work | {work}))

    # -- handing on -------------------------------------------------------------------------------

    def publish(self, state: State, p: str, k: int) -> State:
        """The broker stores the letter."""
        work = _work(state, p, k, "publish")
        _require(len(state.copies) < self.max_copies)
        waits = work.letter.place == "retry" and work.letter.depth > 0
        copy = Copy(work.letter, "delayed" if waits else "stored")
        state = state._replace(copies=(*state.copies, copy))
        return _with(state, p, _set(state.process(p), work, work._replace(phase="sent")))

    def receipt(self, state: State, p: str, k: int) -> State:
        """The receipt arrives, and the original is acknowledged."""
        work, process = _work(state, p, k, "sent"), state.process(p)
        if p != REDRIVER:
            process = _settled(process, k)
            if self.own and state.copy(k).letter.gen == 0:
                stamp = max(process.own.stamp, work.letter.stamp)
                process = process._replace(own=process.own._replace(stamp=stamp))
        return _with(state, p, _set(process, work, work._replace(phase="acking")))

    def acknowledged(self, state: State, p: str, k: int) -> State:
        """The broker gets the acknowledgement."""
        work = _work(state, p, k, "acking")
        return _with(_at(state, k, "acked"), p, _drop(state.process(p), work))

    # -- faults -----------------------------------------------------------------------------------

    def _fault(self, state: State, kind: str) -> State:
        _require(kind in self.faults and state.faults < self.max_faults)
        return state._replace(faults=state.faults + 1)

    def come_back(self, state: State, p: str, k: int) -> State:
        """The letter is not published, or has no receipt: the message comes back."""
        work = _work(state, p, k, "publish", "sent")
        state = self._fault(state, "refuse" if work.phase == "publish" else "lose")
        if state.copy(k).at == p:
            state = _at(state, k, "stored")
        return _with(state, p, _drop(state.process(p), work))

    def again(self, state: State, p: str, k: int) -> State:
        """The letter has no receipt, and is published again."""
        work = _work(state, p, k, "sent")
        state = self._fault(state, "lose")
        return _with(state, p, _set(state.process(p), work, work._replace(phase="publish")))

    def kill(self, state: State, p: str) -> State:
        """The process dies: its copies are delivered again, and it forgets everything."""
        process = state.process(p)
        _require(process.up and process != Process())
        state = self._fault(state, "kill")
        copies = (each._replace(at="stored") if each.at == p else each for each in state.copies)
        state = state._replace(copies=tuple(copies))
        return _with(state, p, Process(up=p == REDRIVER))

    def restart(self, state: State, p: str) -> State:
        """The process runs again."""
        _require(not state.process(p).up)
        return _with(state, p, state.process(p)._replace(up=True))

    def redeliver(self, state: State, k: int) -> State:
        """The broker delivers a copy again, while its process still works on it."""
        p = state.copy(k).at
        _require(p not in {"delayed", "stored", "acked"})
        state = _at(self._fault(state, "redeliver"), k, "stored")
        work = state.work(p, k)
        if work is not None and work.phase == "acking":
            state = _with(state, p, _drop(state.process(p), work))
        return state

    def forget(self, state: State, k: int) -> State:
        """The broker dies before it has stored an acknowledgement."""
        _require(state.copy(k).at == "acked")
        return _at(self._fault(state, "forget"), k, "stored")

    # -- behaviours -------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield each action that is possible in a state, and the next state."""
        every = (*self.consumers, REDRIVER)
        of_process: list[Callable[..., State]] = [self.kill]
        of_copy = [self.due, self.redrive, self.redeliver, self.forget]
        of_both = [self.publish, self.receipt, self.acknowledged, self.come_back, self.again]
        of_consumer = [self.skip, self.succeed]
        numbers = range(1, len(state.copies) + 1)
        tries: list[tuple[Callable[..., State], tuple[Any, ...]]] = [
            *((act, (p,)) for act in of_process for p in every),
            *((self.restart, (p,)) for p in self.consumers),
            *((act, (k,)) for act in of_copy for k in numbers),
            *((act, (p, k)) for act in of_both for p in every for k in numbers),
            *((act, (p, k)) for act in of_consumer for p in self.consumers for k in numbers),
            *(
                (self.deliver, (p, k, phase))
                for p in self.consumers
                for k in numbers
                for phase in ("got", "drop", "supersede")
            ),
            *(
                (partial(self.fail, reject=reject), (p, k, *guess))
                for p in self.consumers
                for k in numbers
                for guess in self._failures(state, p, k)
                for reject in (False, True)[: 1 + ("reject" in self.faults)]
            ),
        ]
        for act, arguments in tries:
            try:
                following = act(state, *arguments)
            except RefusedError:
                continue
            yield getattr(act, "__name__", "fail"), following

    # -- what holds -------------------------------------------------------------------------------

    def broken(self, state: State) -> list[str]:
        """Return the names of the invariants that do not hold in a state."""
        numbers = range(1, len(state.copies) + 1)
        letters = [each.letter for each in state.copies]
        gens = range(self.max_redrives + 1)
        has_copy = all(
            any(state.ended[g:])
            or all(letter.gen < g for letter in letters)
            or any(state.alive(k) and state.copy(k).letter.gen >= g for k in numbers)
            for g in gens
        )
        bounded = all(
            each.count <= self.max_retries and each.depth <= self.max_retries + 1
            for each in letters
        )
        spent = all(
            state.runs[each.gen] == self.max_retries + 1 for each in letters if each.place == "dlq"
        )
        busy = {
            work.k
            for _, process in state.processes
            for work in process.work
            if work.phase in {"sent", "acking"}
        }
        active = [k for k in numbers if state.alive(k) and k not in busy]
        first = [sum(each.gen == g and not each.depth for each in letters) for g in gens]
        dead = [sum(each.gen == g and each.place == "dlq" for each in letters) for g in gens]
        single = (
            (state.faults > 0 or len(active) <= 1)
            and first[0] == 1
            and all(first[g] <= dead[g - 1] + state.faults for g in gens[1:])
        )
        holds = {
            "HasCopy": has_copy,
            "Bounded": bounded,
            "BudgetIsFailures": spent,
            "NoMultiplication": single,
            "HasRoom": len(state.copies) < self.max_copies,
        }
        return [name for name, is_kept in holds.items() if not is_kept]


def _require(condition: object) -> None:
    if not condition:
        raise RefusedError


def _work(state: State, p: str, k: int, *phases: str) -> Work:
    work = state.work(p, k)
    if work is None or work.phase not in phases:
        raise RefusedError
    return work


def _changed(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _at(state: State, k: int, place: str) -> State:
    copy = state.copy(k)._replace(at=place)
    return state._replace(copies=_changed(state.copies, k - 1, copy))


def _with(state: State, name: str, process: Process) -> State:
    processes = ((n, process if n == name else each) for n, each in state.processes)
    return state._replace(processes=tuple(processes))


def _set(process: Process, old: Work, new: Work) -> Process:
    return process._replace(work=process.work - {old} | {new})


def _drop(process: Process, old: Work) -> Process:
    return process._replace(work=process.work - {old})


def _settled(process: Process, k: int) -> Process:
    found = frozenset(each for each in process.seen if each.k == k)
    return process._replace(seen=process.seen - found, handled=process.handled | found)


def _is_recognizable(copy: Copy) -> bool:
    return copy.letter.place == "retry" and copy.letter.gen == 0


def _equal(state: State, j: int, k: int) -> bool:
    one, other = state.copy(j), state.copy(k)
    both = _is_recognizable(one) and _is_recognizable(other)
    return both and one.letter.count == other.letter.count


def _twins(state: State, k: int) -> frozenset[int]:
    numbers = range(1, len(state.copies) + 1)
    return frozenset(j for j in numbers if _equal(state, j, k))
