"""Jitter: bounded, spread, and the same for the same message."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.backoff import Jitter

ATTEMPTS = st.integers(0, 100)
JITTERS = st.sampled_from(["none", "upward", "full"])
BACKOFFS = st.builds(
    lambda one, other: pr.Exponential(min(one, other), max(one, other)),
    st.floats(0, 7e5),
    st.floats(0, 7e5),
)
KEYS = st.text(st.characters(), max_size=20)


def span(jitter: Jitter, backoff: pr.Backoff, attempt: int) -> tuple[float, float]:
    """Return the shortest and the longest delay."""
    soonest, latest = pr.RetryPolicy(jitter=jitter, backoff=backoff).span(attempt)
    return soonest.delay, latest.delay


def spread(jitter: Jitter, backoff: pr.Backoff, attempt: int, key: str) -> float:
    """Return the delay of one message."""
    return pr.RetryPolicy(jitter=jitter, backoff=backoff).after(attempt, key).delay


@given(JITTERS, BACKOFFS, ATTEMPTS, KEYS)
def test_delays_are_within_their_span(
    jitter: Jitter, backoff: pr.Exponential, attempt: int, key: str
) -> None:
    """The span is what `explain` shows. Only upward jitter goes above the backoff's maximum."""
    shortest, longest = span(jitter, backoff, attempt)
    assert 0 <= shortest <= spread(jitter, backoff, attempt, key) <= longest
    most = 1.2 if jitter == "upward" else 1
    assert longest <= backoff.maximum * most


@given(BACKOFFS, ATTEMPTS, KEYS)
def test_upward_jitter_is_never_early(backoff: pr.Exponential, attempt: int, key: str) -> None:
    """The delays of a backoff are minima."""
    assert spread("upward", backoff, attempt, key) >= backoff.delay(attempt)


def test_delays_do_not_change_between_versions() -> None:
    """Two processes of different age agree about a message."""
    backoff = pr.Exponential(10, 600)
    delays = [spread("full", backoff, attempt, "1:2:-1") for attempt in (1, 2, 3)]
    assert [7.7, 17.5, 6.9] == [round(delay, 1) for delay in delays]


@pytest.mark.parametrize("jitter", ["upward", "full"])
def test_messages_that_failed_together_come_back_apart(jitter: Jitter) -> None:
    """A thousand of them are spread evenly: about as many in each tenth of the span."""
    backoff = pr.Exponential(10, 600)
    shortest, longest = span(jitter, backoff, 1)
    delays = [spread(jitter, backoff, 1, f"1:{entry}:-1") for entry in range(1000)]
    tenths = [int((delay - shortest) / (longest - shortest) * 10) for delay in delays]
    assert all(60 <= tenths.count(tenth) <= 140 for tenth in range(10))


def test_any_text_is_a_key() -> None:
    """Also one that is no UTF-8."""
    assert 0 <= spread("full", pr.Fixed(5), 1, "\udcff") < 5  # the default would be 10


def test_another_attempt_has_another_delay() -> None:
    """Of the same message, with the same backoff."""
    assert 100 == len({spread("full", pr.Fixed(60), attempt, "key") for attempt in range(1, 101)})


def test_full_jitter_spreads_any_backoff() -> None:
    """From 0 to the backoff's own delay."""
    assert (0, 5) == span("full", pr.Levels("1s 5s"), 2)


@pytest.mark.parametrize("jitter", ["", "FULL", "equal", 1])
def test_what_is_no_jitter_is_refused(jitter: object) -> None:
    """The error names those that there are."""
    expected = f'jitter={jitter!r}: expected "none", "upward" or "full"'
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.RetryPolicy(jitter=jitter)  # type: ignore[arg-type]
