"""The circuit breaker, in virtual time."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pulsar_retry as pr
from pulsar_retry.pull.engine.breaker import (
    CLOSES_AFTER,
    ENOUGH,
    LONGEST_PAUSE,
    PROBE_PATIENCE,
    BreakerState,
    Circuit,
)

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def circuit(**settings: float) -> Circuit:
    """Return a closed one."""
    return Circuit(pr.Breaker(**settings))


def opened(**settings: float) -> Circuit:
    """Return one that has opened at 0."""
    it = circuit(**settings)
    fail(it, names(ENOUGH))
    assert it.state is OPEN
    return it


def names(count: int, start: int = 0) -> list[str]:
    """Return the keys of so many messages."""
    return [f"message {number}" for number in range(start, start + count)]


def fail(it: Circuit, keys: Iterable[str], now: float = 0.0) -> list[bool]:
    """Let messages fail; return which failures use up an attempt."""
    return [it.failed(key, now) for key in keys]


def try_one(it: Circuit, key: str, now: float, *, succeeds: bool) -> bool:
    """Try one message; return whether its failure uses up an attempt."""
    assert it.room(now) >= 1
    it.begin(key, now)
    if succeeds:
        it.probe_succeeded(key)
        return False
    return it.failed(key, now)


def test_ten_different_messages_open_it() -> None:
    """The tenth failure uses up no attempt any more."""
    it = circuit()
    assert [True] * 9 + [False] == fail(it, names(10))
    assert (OPEN, 0, 1.0) == (it.state, it.room(0.0), it.wait(0.0))


def test_one_message_that_fails_again_and_again_does_not_open_it() -> None:
    """Nor do eight: they use up their attempts."""
    it = circuit()
    assert all(fail(it, names(8) * 20))
    assert it.state is CLOSED


def test_messages_that_were_known_to_fail_do_not_open_it() -> None:
    """After a success, only first failures count."""
    it = circuit()
    fail(it, names(9))
    it.succeeded(1)
    assert all(fail(it, names(9) * 10))
    assert it.state is CLOSED


def test_failures_beside_successes_do_not_open_it() -> None:
    """Twenty messages fail, and as many succeed between them."""
    it = circuit()
    for key in names(20) * 17:
        assert it.failed(key, 0.0)
        it.succeeded(1)
    assert it.state is CLOSED


def test_a_tenth_of_successes_keeps_it_closed() -> None:
    """It opens when the share of successes in the last fifty is below that."""
    it = circuit()
    it.succeeded(5)
    assert all(fail(it, names(45)))
    fail(it, names(1, 45))
    assert it.state is OPEN


def test_the_pause_doubles_with_each_failure() -> None:
    """From one second to thirty."""
    it, now, pauses = opened(), 0.0, []
    for key in names(8):
        pauses.append(it.wait(now))
        now += it.wait(now)
        try_one(it, key, now, succeeds=False)
    assert [1, 2, 4, 8, 16, 30, 30, 30] == pauses


def test_what_still_runs_does_not_lengthen_the_pause() -> None:
    """It had begun before the breaker opened, or before a later failure."""
    it = opened()
    assert not any(fail(it, names(50, 100)))
    assert it.wait(0.0) == 1.0


def test_successes_let_more_and_more_through() -> None:
    """One, two, four, eight, all."""
    it, rooms = opened(), []
    for key in names(CLOSES_AFTER):
        rooms.append(it.room(1.0))
        try_one(it, key, 1.0, succeeds=True)
    assert [1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 16] == rooms
    assert (CLOSED, math.inf) == (it.state, it.room(1.0))


def test_a_failure_when_it_is_half_open_opens_it_again() -> None:
    """With a pause twice as long, and one message after it."""
    it = opened()
    for key in names(5):
        try_one(it, key, 1.0, succeeds=True)
    assert it.state is HALF_OPEN
    assert not try_one(it, "another", 1.0, succeeds=False)
    assert (OPEN, 2.0, 1) == (it.state, it.wait(1.0), it.room(3.0))


@pytest.mark.parametrize(("of", "fails", "soon"), [(10, 1, 30), (5, 1, 60), (2, 1, 180)])
def test_it_closes_where_some_messages_fail_at_any_time(of: int, fails: int, soon: float) -> None:
    """It does not wait for sixteen in a row; nor is a pause long that follows a success."""
    it, now, number = opened(), 0.0, 0
    while it.state is not CLOSED:
        now += it.wait(now) if it.room(now) < 1 else 0.0
        try_one(it, f"probe {number}", now, succeeds=number % of >= fails)
        number += 1
    assert now < soon


def test_few_successes_among_many_failures_do_not_close_it() -> None:
    """Less than sixteen of the last fifty."""
    it, now = opened(hold=math.inf), 0.0
    for number in range(500):
        now += it.wait(now) if it.room(now) < 1 else 0.0
        try_one(it, f"probe {number}", now, succeeds=number % 10 < 3)
        assert it.state is not CLOSED


def test_one_message_is_tried_at_a_time() -> None:
    """The next one follows when it has ended, or after thirty seconds."""
    it = opened()
    it.begin("slow", 1.0)
    assert (0, PROBE_PATIENCE) == (it.room(1.0), it.wait(1.0))
    assert it.room(1.0 + PROBE_PATIENCE) == 1
    it.ended("slow")
    assert it.room(1.0) == 1


def test_a_decision_about_a_message_is_no_outcome() -> None:
    """The next message can be tried at once."""
    it = opened()
    it.begin("rejected", 1.0)
    it.ended("rejected")
    assert (OPEN, 1) == (it.state, it.room(1.0))


def test_new_messages_are_tried_first() -> None:
    """Then those that have failed before it opened, then those that were tried already."""
    it = opened()
    try_one(it, "tried", 1.0, succeeds=False)
    ranks = [
        it.rank("new", retried=False),
        it.rank("a letter", retried=True),
        it.rank("tried", retried=False),
    ]
    assert sorted(ranks) == ranks
    assert it.rank(names(1)[0], retried=False) == it.rank("a letter", retried=True)


def prove(it: Circuit) -> None:
    """Show at 1, as probes do, that retries succeed where first attempts fail."""
    try_one(it, names(1)[0], 1.0, succeeds=True)
    try_one(it, "new", 1.0, succeeds=False)
    try_one(it, names(1, 1)[0], 3.0, succeeds=True)


def test_it_closes_where_retries_succeed_and_first_attempts_fail() -> None:
    """That is no outage. First failures do not open it again for a while, but second ones do."""
    it = opened()
    prove(it)
    assert it.state is CLOSED
    assert all(fail(it, names(100, 100), 3.0))
    assert [True] * 9 + [False] == fail(it, names(10, 100), 3.0)
    assert it.state is OPEN


def test_where_retries_have_helped_last_attempts_open_it_too() -> None:
    """Other workers may have had the earlier failures of these messages."""
    it = opened()
    prove(it)
    found = [it.failed(key, 3.0, is_last=True) for key in names(10, 100)]
    assert [True] * 9 + [False] == found


def test_what_was_proven_is_forgotten() -> None:
    """After ten minutes, first failures open it again."""
    it = opened()
    prove(it)
    assert [True] * 9 + [False] == fail(it, names(10, 100), 700.0)


def test_a_service_that_comes_back_is_no_such_proof() -> None:
    """New messages succeed then."""
    it = opened()
    try_one(it, names(1)[0], 1.0, succeeds=True)
    try_one(it, "new", 1.0, succeeds=True)
    try_one(it, "another", 1.0, succeeds=False)
    try_one(it, names(1, 1)[0], 3.0, succeeds=True)
    assert it.state is HALF_OPEN


def test_messages_that_have_opened_it_go_on_with_their_attempts() -> None:
    """Not with the last one. Every other probe is one of them; the tenth has lost no attempt."""
    it = opened()
    sample, tenth = names(1)[0], names(1, 9)[0]
    assert it.rank(sample, retried=True, sampled=True) < it.rank("new", retried=False, sampled=True)
    it.begin(sample, 1.0)
    assert it.failed(sample, 1.0)
    assert not it.was_probed(sample)
    it.begin(sample, 3.0)
    assert not it.failed(sample, 3.0, is_last=True)
    it.begin(tenth, 7.0)
    assert not it.failed(tenth, 7.0)


def test_it_is_no_trap() -> None:
    """After *hold* seconds, failures use up attempts again, one at a time."""
    it = opened(hold=100)
    assert not try_one(it, "early", 99.0, succeeds=False)
    assert try_one(it, "late", 140.0, succeeds=False)
    assert not it.failed("no probe", 140.0)


@pytest.mark.parametrize("hold", [0, -1, "soon", True])
def test_a_hold_that_makes_no_sense_is_refused(hold: object) -> None:
    """Before anything is opened."""
    with pytest.raises(pr.ConfigError, match="hold"):
        pr.Breaker(hold=hold)  # type: ignore[arg-type]


@given(st.integers(0, 60))
def test_it_opens_within_ten_first_failures_after_the_last_success(before: int) -> None:
    """As soon as successes are less than a tenth of the last fifty."""
    it = circuit()
    it.succeeded(before)
    failures = 0
    while it.state is CLOSED:
        it.failed(f"message {failures}", 0.0)
        failures += 1
    assert ENOUGH <= failures <= 46
    assert failures == ENOUGH or before


#: Which message is tried.
OF = st.sampled_from(["new", "sample", "failed"])


class Outages(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.it = circuit(hold=600)
        self.now = 0.0
        self.running: list[str] = []
        self.failed: set[str] = set()
        self.spent: Counter[str] = Counter()
        self.evidence: set[str] = set()  # first failures since the last success
        self.sample: set[str] = set()
        self.probes = ""  # what became of them: of the Sample, of New messages, or of others
        self.helpful, self.helpful_until, self.resumes_at = 0, 0.0, 0.0
        self.in_a_row = self.successes = 0
        self.numbers = iter(range(10**6))

    def lets_fail(self, key: str, *, is_last: bool, is_probe: bool = False) -> None:
        """A message fails: its attempt counts if and only if it may."""
        was_closed, began = self.it.state is CLOSED, self.it.opened_at
        is_new = key not in self.failed
        self.failed.add(key)
        spends = self.it.failed(key, self.now, is_last=is_last)
        if was_closed:
            assert spends is (self.it.state is CLOSED)
            helpful = self.helpful if self.now < self.helpful_until else 0
            if is_last or self.spent[key] == helpful if helpful else is_new:
                self.evidence.add(key)
            if not spends:
                assert len(self.evidence) >= ENOUGH
                self.sample = self.evidence - {key}
                self.helpful_until = 0.0
        else:
            goes_on = key in self.sample and not is_last
            assert spends is (is_probe and (goes_on or self.now >= began + 600))
        if is_probe:
            assert self.it.state is OPEN
            self.probes += "N" if is_new else "f"
            self.in_a_row = 0
        if is_probe or (was_closed and not spends):
            self.running.clear()
            self.resumes_at = self.now + self.it.wait(self.now)
        self.spent[key] += spends

    @rule(seconds=st.sampled_from([0.125, 1.0, 5.0, 29.0, 31.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        """Some."""
        self.now += seconds

    @rule(count=st.sampled_from([1, 3, ENOUGH]), is_last=st.booleans())
    def new_messages_fail(self, count: int, is_last: bool) -> None:
        """They have not begun as probes."""
        for _ in range(count):
            self.lets_fail(f"message {next(self.numbers)}", is_last=is_last)

    @precondition(lambda self: self.failed - set(self.running))
    @rule(data=st.data(), is_last=st.booleans())
    def a_known_message_fails(self, data: st.DataObject, is_last: bool) -> None:
        """A retry, which is no evidence, unless it was proven that retries help."""
        key = data.draw(st.sampled_from(sorted(self.failed - set(self.running))))
        self.lets_fail(key, is_last=is_last)

    @rule(count=st.integers(1, 60))
    def messages_succeed(self, count: int) -> None:
        """Not as probes."""
        self.it.succeeded(count)
        if self.it.state is CLOSED:
            self.evidence.clear()

    @precondition(lambda self: self.it.state is not CLOSED)
    @rule(data=st.data(), of=OF)
    def a_probe_begins(self, data: st.DataObject, of: str) -> None:
        """If there is room for it, perhaps after a pause."""
        if self.it.room(self.now) < 1:
            self.now += self.it.wait(self.now)
        known = {"new": set(), "sample": self.sample, "failed": self.failed}[of]
        choices = sorted(known - set(self.running)) or [f"message {next(self.numbers)}"]
        self.running.append(data.draw(st.sampled_from(choices)))
        self.it.begin(self.running[-1], self.now)

    @precondition(lambda self: self.running)
    @rule()
    def a_probe_succeeds(self) -> None:
        """It closes after enough of them, or when it is proven that retries help."""
        key = self.running.pop()
        self.it.probe_succeeded(key)
        self.probes += "S" if key in self.sample else "s"
        self.in_a_row += 1
        self.successes += 1
        is_proven = re.search("S[^s]*N[^s]*S$", self.probes)
        assert self.in_a_row < CLOSES_AFTER or self.it.state is CLOSED
        assert not is_proven or self.it.state is CLOSED
        if self.it.state is CLOSED:
            assert is_proven or self.successes >= CLOSES_AFTER
            if is_proven:
                self.helpful, self.helpful_until = self.spent[key], self.resumes_at + 600
            self.running.clear()
            self.evidence.clear()
            self.in_a_row = self.successes = 0
            self.probes = ""

    @precondition(lambda self: self.running)
    @rule(is_last=st.booleans())
    def a_probe_fails(self, is_last: bool) -> None:
        """It opens again."""
        self.lets_fail(self.running.pop(), is_last=is_last, is_probe=True)

    @precondition(lambda self: self.it.state is not CLOSED)
    @rule(data=st.data(), probes=st.lists(st.tuples(OF, st.booleans()), max_size=2 * CLOSES_AFTER))
    def probes_end(self, data: st.DataObject, probes: list[tuple[str, bool]]) -> None:
        """One after the other."""
        for of, succeeds in probes:
            if self.it.state is not CLOSED:
                self.a_probe_begins(data, of)
                self.a_probe_succeeds() if succeeds else self.a_probe_fails(is_last=False)

    @invariant()
    def it_goes_on(self) -> None:
        """When nothing runs, a message can begin after a pause."""
        if self.it.state is not CLOSED and not self.running:
            wait = self.it.wait(self.now) if self.it.room(self.now) < 1 else 0.0
            assert wait <= max(LONGEST_PAUSE, PROBE_PATIENCE)
            assert self.it.room(self.now + wait) >= 1


TestOutages = Outages.TestCase
