"""Whatever the two ways to drop a letter do together, one copy of a message stays."""

from __future__ import annotations

import itertools

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_retry.consumer.received_letters import LetterWindow
from pulsar_retry.letters.facts import made_at
from pulsar_retry.pull.engine.own_letters import OwnLetters, Record

PROCESSES = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fail", "defer", "publish"]),
        st.integers(0, PROCESSES - 1),
        st.integers(0, 9),
        st.booleans(),
        st.sampled_from([0.0, 0.0005, 0.5, 2.0]),
    ),
    max_size=40,
)
CLOCKS = st.sampled_from([-3600.0, -1.0, 0.0, 0.1, 5.0])
CHANGES = st.sampled_from([-2.0, 0.0, 2.0])

#: The first process defers a letter. The second one, whose clock is behind, defers the letter that
#: was made of it: all three have the same count.
DEFERRED = [
    ("fail", 2, 0, True, 0.0),
    ("publish", 0, 0, True, 0.0),
    ("defer", 0, 0, True, 0.5),
    ("publish", 0, 0, True, 0.0),
    ("defer", 1, 0, True, 0.5),
    ("publish", 0, 0, True, 0.0),
    ("fail", 0, 0, True, 0.5),
]
#: A kill leaves a message and its letter. Two processes handle them in one millisecond, and each
#: receives the letter of the other one.
AT_ONCE = [
    ("fail", 0, 0, False, 0.0),
    ("publish", 0, 0, False, 0.0),
    ("fail", 1, 0, True, 0.5),
    ("fail", 2, 1, True, 0.0),
    ("publish", 0, 0, True, 0.0),
    ("publish", 0, 0, True, 0.0),
    ("fail", 2, 0, True, 0.6),
    ("fail", 1, 0, True, 0.0),
]
#: A kill leaves a message and its letter. A process drops the letter for its own, which is equal
#: and was made before the first was delivered.
BOTH_WAYS = [
    ("fail", 0, 0, False, 0.0),
    ("publish", 0, 0, False, 0.0),
    ("fail", 1, 0, True, 0.5),
    ("publish", 0, 0, True, 0.0),
    ("fail", 1, 0, True, 2.0),
    ("fail", 1, 0, True, 2.0),
]


@attrs.define(eq=False)
class Copy:
    """A copy of the message that is not acknowledged: the message itself, or a letter."""

    place: int = 0
    failures: int = 0
    properties: dict[str, str] = attrs.field(factory=dict)
    published: float = 0.0

    @property
    def id(self) -> tuple[int, int, int, int]:
        """The position of a letter."""
        return (1, self.place, -1, -1)


class Process:
    """A subscriber's process, with a clock of its own."""

    def __init__(self, off: float) -> None:
        self.now, self.off = 1000.0, off
        self.own = OwnLetters(clock=self.wall, steady=lambda: self.now)
        self.window = LetterWindow(clock=self.wall, steady=lambda: self.now)

    def wall(self) -> float:
        """Return what its clock shows."""
        return self.now + self.off

    def drops(self, copy: Copy) -> bool:
        """Tell whether it drops a copy, as the consumer and then the settler do."""
        if not copy.properties:
            return False
        print_ = ("the message", copy.failures)
        if self.window.delivered(copy.id, print_, made_at(copy.properties, copy.published)):
            return True
        stamp = int(copy.properties["FAILURE_STAMP"])
        if self.own.supersede("a", copy.failures, stamp):
            self.window.settled(copy.id, handled=False)
            return True
        return False

    def make(self, copy: Copy, *, counts: bool) -> Copy:
        """Handle a copy that fails, and make its letter."""
        failures = max(copy.failures, self.own.failures("a")) + counts
        record = self.own.failed("a", failures, 0.0, copy.properties)
        return Copy(0, failures, {"FAILURE_STAMP": str(record.stamp)})

    def publish(self, letter: Copy, original: Copy, place: int) -> None:
        """Publish a letter, and acknowledge the copy that it was made of."""
        letter.place = place
        letter.published = int(self.wall() * 1000) / 1000  # as pulsar-client has it
        stamp = int(letter.properties["FAILURE_STAMP"])
        self.own.published(Record("a", letter.failures, stamp))
        self.window.settled(original.id)


@example(steps=DEFERRED, clocks=[5.0, 0.0, 0.0], changes=[0.0, 0.0, 0.0])
@example(steps=AT_ONCE, clocks=[0.00015, 0.0003, 0.00045], changes=[0.0, 0.0, 0.0])
@example(steps=BOTH_WAYS, clocks=[0.0, 0.0, 0.0], changes=[0.0, 0.0, 0.0])
@given(
    steps=STEPS,
    clocks=st.lists(CLOCKS, min_size=PROCESSES, max_size=PROCESSES),
    changes=st.lists(CHANGES, min_size=PROCESSES, max_size=PROCESSES),
)
def test_the_last_copy_is_never_dropped(
    steps: list[tuple[str, int, int, bool, float]], clocks: list[float], changes: list[float]
) -> None:
    """Whatever the clocks show, whoever gets which copy, and whatever is not acknowledged.

    The clocks differ, and are set once. In each step a process handles a copy, which fails or is
    deferred, or a letter that was made is published. Its original may then be delivered again,
    because the acknowledgement was lost.
    """
    processes = [Process(off) for off in clocks]
    places = itertools.count(1)
    copies, made = [Copy()], list[tuple[Process, Copy, Copy, bool]]()
    for number, (step, which, nth, is_acknowledged, seconds) in enumerate(steps):
        for each, change in zip(processes, changes, strict=True):
            each.now += seconds
            each.off += change * (number == len(steps) // 2)
        if step == "publish":
            if made:
                process, letter, original, is_acked = made.pop(nth % len(made))
                process.publish(letter, original, next(places))
                copies.append(letter)
                if is_acked and original in copies:
                    copies.remove(original)
            continue
        process, copy = processes[which], copies[nth % len(copies)]
        if process.drops(copy):
            copies.remove(copy)
            assert copies
        else:
            made.append((process, process.make(copy, counts=step == "fail"), copy, is_acknowledged))
