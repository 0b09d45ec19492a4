"""Shows that what was observed of one message is a behaviour of the model.

For each observed event, a witness performs the action of the state machine, and before it the
actions that nobody observes, such as a redelivery by the broker. If the machine does not allow an
action, or an invariant breaks, the log is no behaviour of the model.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from support.model.machine import Machine, RefusedError, State, Work


class NotABehaviourError(Exception):
    """The model does not allow what was observed."""


class Witness:
    """The state of the model after the events of one message so far.

    Attributes:
        state: The state.
        numbers: The model's numbers of copies, by the ids that the log uses.
        hidden: How many actions that were not observed had to be assumed, by name.
    """

    def __init__(self, machine: Machine, first: Any) -> None:
        """Begin when the message, whose id is *first*, is in its topic."""
        self.machine = machine
        self.state: State = machine.initial()
        self.numbers = {first: 1}
        self.hidden: Counter[str] = Counter()

    def act(self, action: str, *arguments: Any, **options: Any) -> None:
        """Perform an action.

        Raises:
            NotABehaviourError: the machine does not allow it, or an invariant is broken.
        """
        try:
            self.state = getattr(self.machine, action)(self.state, *arguments, **options)
        except RefusedError:
            raise NotABehaviourError(f"{action}{arguments} is not possible now") from None
        if broken := self.machine.broken(self.state):
            raise NotABehaviourError(f"after {action}{arguments}, {broken} do not hold")

    def assume(self, action: str, *arguments: Any) -> None:
        """Perform an action that was not observed."""
        self.act(action, *arguments)
        self.hidden[action] += 1

    def work(self, p: str, copy: Any) -> Work | None:
        """Return what a process does with a copy."""
        return self.state.work(p, self.number(copy))

    def number(self, copy: Any) -> int:
        """Return the model's number of a copy.

        Raises:
            NotABehaviourError: nobody has published it.
        """
        if copy not in self.numbers:
            raise NotABehaviourError(f"nobody has published {copy}")
        return self.numbers[copy]

    def to_be_delivered(self, copy: Any) -> int:
        """Assume what the broker does before it delivers a copy, and return its number."""
        k = self.number(copy)
        at = self.state.copy(k).at
        if at == "delayed":
            self.act("due", k)
        elif at == "acked":
            self.assume("forget", k)
        elif at != "stored":
            self.assume("redeliver", k)
        return k

    def delivered(self, p: str, copy: Any) -> None:
        """A process begins to handle a copy."""
        k = self.to_be_delivered(copy)
        work = self.state.work(p, k)
        if work is not None and work.phase in {"publish", "sent"}:
            self.assume("come_back", p, k)
        elif work is not None and work.phase == "acking":
            self.act("acknowledged", p, k)
            self.assume("forget", k)
        self.act("deliver", p, k, "got")

    def dropped(self, p: str, copy: Any) -> None:
        """A process acknowledges a letter without handling it."""
        k = self.to_be_delivered(copy)
        is_duplicate = self.machine.is_duplicate(self.state, p, k)
        self.act("deliver", p, k, "drop" if is_duplicate else "supersede")
        self.act("skip", p, k)

    def drops_again(self, p: str, k: int) -> bool:
        """Tell whether a process may drop a second delivery of a copy that it works on.

        The model cannot perform it: there, a process works on one delivery of a copy. If the copy
        is still at the process, the broker has delivered it again before the first delivery began.
        """
        state, machine = self.state, self.machine
        may_drop = machine.is_duplicate(state, p, k) or machine.is_superseded(state, p, k)
        return may_drop and state.copy(k).at in {"stored", p}

    def failed(self, p: str, copy: Any, *, count: int | None, stamp: int = 0, now: int = 0) -> None:
        """A process decides on a letter; *count* is the count of a retry; None: a dead letter.

        Without a *stamp*, the letter gets the least one that is possible, but not less than *now*.
        """
        k = self.number(copy)
        letter, own = self.state.copy(k).letter, self.state.process(p).own
        most = max(letter.count, own.failures) if self.machine.own else letter.count
        before = most if count is None else count - 1
        least = max(letter.stamp + 1, own.issued + 1, now) if self.machine.own else 0
        reject = count is None and before + 1 <= self.machine.max_retries
        self.act("fail", p, k, before, stamp or least, reject=reject)

    def stored(self, p: str, parent: Any, copy: Any) -> None:
        """The broker has stored a letter."""
        k = self.number(parent)
        work = self.state.work(p, k)
        if work is not None and work.phase == "sent":
            self.assume("again", p, k)
        self.act("publish", p, k)
        self.numbers[copy] = len(self.state.copies)
