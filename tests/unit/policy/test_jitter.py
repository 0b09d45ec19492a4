"""Jitter: bounded, spread, and the same for the same message."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr

ATTEMPTS = st.integers(0, 100)
SEEDS = st.integers(-(2**70), 2**70)
SPREADS = ["none", "upward", "full", "decorrelated"]
JITTERS = st.builds(pr.Jitter, st.sampled_from(SPREADS), seed=SEEDS)
BACKOFFS = st.builds(
    lambda one, other: pr.Exponential(min(one, other), max(one, other)),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)
KEYS = st.text(st.characters(), max_size=20)


@given(JITTERS, BACKOFFS, ATTEMPTS, KEYS)
def test_delays_are_within_their_span(
    jitter: pr.Jitter, backoff: pr.Exponential, attempt: int, key: str
) -> None:
    """The span is what `explain` shows. Only upward jitter goes above the backoff's maximum."""
    shortest, longest = jitter.span(backoff, attempt)
    assert 0 <= shortest <= jitter.delay(backoff, attempt, key) <= longest
    most = 1.2 if jitter.spread == "upward" else 1
    assert longest <= backoff.maximum * most


@given(BACKOFFS, ATTEMPTS, KEYS)
def test_upward_jitter_is_never_early(backoff: pr.Exponential, attempt: int, key: str) -> None:
    """The delays of a backoff are minima."""
    assert pr.Jitter("upward").delay(backoff, attempt, key) >= backoff.delay(attempt)


@given(JITTERS, BACKOFFS, ATTEMPTS, KEYS)
def test_jitter_is_a_value(
    jitter: pr.Jitter, backoff: pr.Exponential, attempt: int, key: str
) -> None:
    """The same seed, message and attempt give the same delay, in any process."""
    twin = pr.Jitter(jitter.spread, seed=jitter.seed)
    assert jitter.delay(backoff, attempt, key) == twin.delay(backoff, attempt, key)


def test_delays_do_not_change_between_versions() -> None:
    """Two processes of different age agree about a message."""
    backoff = pr.Exponential(10, 600)
    full, decorrelated = pr.Jitter("full", seed=7), pr.Jitter("decorrelated", seed=7)
    assert [2.0, 17.7, 2.2] == [round(full.delay(backoff, n, "1:2:-1"), 1) for n in (1, 2, 3)]
    assert [14.0, 38.4, 15.7] == [
        round(decorrelated.delay(backoff, n, "1:2:-1"), 1) for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("spread", ["upward", "full", "decorrelated"])
def test_messages_that_failed_together_come_back_apart(spread: str) -> None:
    """A thousand of them are spread evenly: about as many in each tenth of the span."""
    jitter, backoff = pr.Jitter(spread), pr.Exponential(10, 600)
    shortest, longest = jitter.span(backoff, 1)
    delays = [jitter.delay(backoff, 1, f"1:{entry}:-1") for entry in range(1000)]
    tenths = [int((delay - shortest) / (longest - shortest) * 10) for delay in delays]
    assert all(60 <= tenths.count(tenth) <= 140 for tenth in range(10))


def test_another_seed_gives_other_delays() -> None:
    """As does another attempt."""
    backoff = pr.Fixed(60)
    delays = {pr.Jitter("full", seed=seed).delay(backoff, 1, "key") for seed in range(100)}
    delays |= {pr.Jitter("full").delay(backoff, attempt, "key") for attempt in range(2, 101)}
    assert 199 == len(delays)


def test_decorrelated_delays_grow_up_to_the_maximum() -> None:
    """Each is drawn from the minimum to three times the one before."""
    jitter, backoff = pr.Jitter("decorrelated"), pr.Exponential(1, 100)
    spans = [jitter.span(backoff, attempt) for attempt in (1, 2, 3, 4, 5, 10_000)]
    assert [(1, 3), (1, 9), (1, 27), (1, 81), (1, 100), (1, 100)] == spans
    previous = 1.0
    for attempt in range(1, 200):
        delay = jitter.delay(backoff, attempt, "key")
        assert 1 <= delay <= min(100, 3 * previous)
        previous = delay


def test_full_jitter_spreads_any_backoff() -> None:
    """From 0 to the backoff's own delay."""
    assert (0, 5) == pr.Jitter("full").span(pr.Levels("1s 5s"), 2)


def test_a_jitter_as_text_has_its_seed() -> None:
    """Unless it is the usual one."""
    assert ["full", "full, seed 7"] == [str(pr.Jitter("full", seed=seed)) for seed in (0, 7)]


@pytest.mark.parametrize("spread", ["", "FULL", "equal", None, 1])
def test_what_is_no_jitter_is_refused(spread: object) -> None:
    """The error names those that there are."""
    expected = f'jitter={spread!r}: expected "none", "upward", "full" or "decorrelated"'
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.Jitter.of(spread)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [None, 1.5, "1", True])
def test_a_seed_is_an_int(seed: object) -> None:
    """Whatever else is refused by name."""
    with pytest.raises(pr.ConfigError, match=r"^seed=.*: expected an int$"):
        pr.Jitter("full", seed=seed)  # type: ignore[arg-type]
