"""The due share of a backlog, from a few entries."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.ops.estimating import FIRST, MORE, Estimate, estimate_due


class Backlog:
    """Entries that are due or not, which counts how many are looked at."""

    def __init__(self, is_due: Sequence[bool]) -> None:
        self.is_due, self.looks = is_due, 0

    def look(self, numbers: Sequence[int]) -> list[bool]:
        """Answer for entries that are counted from 1."""
        self.looks += len(numbers)
        return [self.is_due[number - 1] for number in numbers]

    def estimate(self, seed: int = 0) -> Estimate:
        """Return the estimate."""
        return estimate_due(len(self.is_due), self.look, chance=random.Random(seed))  # noqa: S311


@given(st.integers(0, 100_000), st.data())
def test_equal_delays_are_counted_exactly(waiting, data):
    """By a search: it looks at a few entries, however many wait."""
    due = data.draw(st.integers(0, waiting))
    backlog = Backlog([True] * due + [False] * (waiting - due))
    assert Estimate(due) == backlog.estimate()
    assert backlog.looks <= FIRST + 60


@given(st.lists(st.booleans(), max_size=FIRST))
def test_few_entries_are_all_looked_at(is_due):
    """So the count is exact, whatever their delays."""
    assert Estimate(sum(is_due)) == Backlog(is_due).estimate()


@given(
    st.lists(st.booleans(), min_size=1, max_size=20_000),
    st.integers(0, 1000),
)
def test_it_is_never_more_than_there_is_nor_endless(is_due, seed):
    """In any order of due and other entries, whatever chance chooses."""
    backlog = Backlog(is_due)
    estimate = backlog.estimate(seed)
    assert 0 <= estimate.due <= len(is_due)
    assert backlog.looks <= FIRST + MORE


def delayed(waiting: int, delays: Sequence[float], chance: random.Random) -> list[bool]:
    """Return which of *waiting* entries are due, published over 600 s, with delays by chance."""
    return [600 * number / waiting + chance.choice(delays) <= 600 for number in range(waiting)]


def test_the_stated_error_holds_for_mixed_delays():
    """In 95 % of many backlogs of many mixtures, and it is a small part of them."""
    chance = random.Random(19)  # noqa: S311 - no secret
    wrong = errors = 0
    cases = 200
    for case in range(cases):
        mixture = [chance.choice((0.0, 1.0, 10.0, 60.0, 300.0, 900.0)) for _ in range(8)]
        is_due = delayed(20_000, mixture, chance)
        estimate = Backlog(is_due).estimate(case)
        wrong += abs(estimate.due - sum(is_due)) > estimate.error
        errors += estimate.error
    assert wrong <= 0.05 * cases
    assert errors / cases <= 0.06 * 20_000
