"""Pending nacks against a simple model: one due time for each message that was nacked."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsar_retry.consumer.nacks.pending import WHOLE, WIDTH, PendingNacks

ENTRIES = st.tuples(st.integers(1, 3), st.integers(0, 4))
INDEXES = st.integers(WHOLE, 3)
#: Whole moments, so that what is due when is exact.
DUES = st.integers(0, 40).map(lambda moment: moment * WIDTH)


class Against(RuleBasedStateMachine):
    """Does to the real one and to the model the same."""

    def __init__(self) -> None:
        super().__init__()
        self.real = PendingNacks()
        self.model: dict[tuple[tuple[int, int], int], float] = {}

    def dues(self) -> dict[tuple[int, int], float]:
        """Return when the model's entries are due: with the first of their messages."""
        dues: dict[tuple[int, int], float] = {}
        for (entry, _), due in self.model.items():
            dues[entry] = min(due, dues.get(entry, due))
        return dues

    @rule(entry=ENTRIES, index=INDEXES, due=DUES)
    def nack(self, entry: tuple[int, int], index: int, due: float) -> None:
        """Nack a message, for the first time or again."""
        before = min(self.dues().values(), default=1e9)
        assert (due < before) == self.real.add(entry, index, f"id of {entry}", due)
        key = (entry, index)
        self.model[key] = min(due, self.model.get(key, due))

    @rule(entry=ENTRIES, index=INDEXES)
    def cancel(self, entry: tuple[int, int], index: int) -> None:
        """Settle a message, or an entry."""
        gone = [key for key in self.model if key[0] == entry and index in {WHOLE, key[1]}]
        assert len(gone) == self.real.cancel(entry, index)
        for key in gone:
            del self.model[key]

    @rule(entry=ENTRIES, index=INDEXES, one_topic=st.booleans())
    def cancel_up_to(self, entry: tuple[int, int], index: int, one_topic: bool) -> None:
        """Settle all up to a message."""
        gone = [
            (each, i)
            for each, i in self.model
            if (each < entry and (one_topic or each[0] == entry[0]))
            or (each == entry and (index == WHOLE or WHOLE < i <= index))
        ]
        assert len(gone) == self.real.cancel_up_to(entry, index, lambda _: one_topic)
        for key in gone:
            del self.model[key]

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        """Take what is due first; all nacks of an entry are done with then."""
        dues = self.dues()
        taken = self.real.take(count)
        entries = [entry for entry in dues if f"id of {entry}" in taken]
        assert len(taken) == len(entries) == min(count, len(dues))
        assert sorted(dues.values())[: len(taken)] == sorted(dues[entry] for entry in entries)
        order = [dues[entry] for each in taken for entry in dues if each == f"id of {entry}"]
        assert sorted(order) == order
        for key in list(self.model):
            if key[0] in entries:
                del self.model[key]

    @precondition(lambda self: len(self.model) > 10)
    @rule()
    def clear(self) -> None:
        """Forget all."""
        self.real.clear()
        self.model.clear()

    @invariant()
    def they_agree(self) -> None:
        """On how many there are, and on what is due when."""
        dues = self.dues()
        assert len(self.model) == len(self.real)
        assert dues.keys() == self.real.entries.keys()
        assert min(dues.values(), default=None) == self.real.head()
        for until in (0.2, 100.0):
            expected = sorted(Counter(due for due in dues.values() if due <= until).items())
            assert expected == self.real.upcoming(until)

    @invariant()
    def nothing_is_left_over(self) -> None:
        """No bucket without entries, no batch without an entry, no endless heap."""
        assert all(self.real._buckets.values())
        assert self.real._batches.keys() <= self.real.entries.keys()
        assert len(self.real._moments) <= 2 * len(self.real._buckets) + 65


TestAgainstTheModel = Against.TestCase


@given(st.floats(0, 1e9), st.floats(0, 1e6))
def test_nothing_is_due_early(now: float, delay: float) -> None:
    """And later by a moment's width at most."""
    pending = PendingNacks()
    pending.add((1, 1), WHOLE, "id", now + delay)
    head = pending.head()
    assert head is not None
    slack = (now + delay) * 1e-15  # of the floats themselves
    assert now + delay - slack <= head <= now + delay + WIDTH + slack


def test_messages_of_one_moment_keep_their_order() -> None:
    """As far as the broker keeps it."""
    pending = PendingNacks()
    for number in range(100):
        pending.add((1, number), WHOLE, number, 5.0)
    assert [*range(30)] == pending.take(30)
    assert [*range(30, 100)] == pending.take(1000)


def test_settling_the_first_of_a_batch_leaves_the_others_their_time() -> None:
    """The entry is due with the first one that is still nacked."""
    pending = PendingNacks()
    pending.add((1, 1), 0, "id", 1.0)
    pending.add((1, 1), 1, "id", 60.0)
    assert 1.0 == pending.head()
    pending.cancel((1, 1), 0)
    assert 60.0 == pending.head()


def test_one_id_is_kept_for_a_whole_batch() -> None:
    """The broker is asked once for it."""
    pending = PendingNacks()
    for index in range(1000):
        pending.add((1, 1), index, "id", 5.0)
    assert (1000, ["id"], 0) == (len(pending), pending.take(1000), len(pending))


def test_nacking_and_settling_for_ever_takes_no_memory() -> None:
    """Neither in the same moment nor in ever new ones."""
    pending = PendingNacks()
    pending.add((0, 0), WHOLE, "stays", 1e6)
    for number in range(10_000):
        entry: Any = (1, number)
        pending.add(entry, WHOLE, "id", 60.0 + number % 2 * number)
        pending.cancel(entry, WHOLE)
    assert len(pending._moments) < 200
    assert (1, 1) == (len(pending._buckets), len(pending.entries))
