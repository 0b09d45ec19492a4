"""The window and the backoff, in virtual time, against what Pub/Sub's page says."""

from __future__ import annotations

import heapq
import random
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_retry.errors import ConfigError
from pulsar_retry.push.pacing import (
    EXPONENTIAL_UP_TO,
    INITIAL,
    LONGEST,
    SHORTEST,
    PushBackoff,
    Window,
)


def dice() -> random.Random:
    """Return chances that are the same in each run."""
    return random.Random(1)


#: Whether a request succeeds, how long that takes, and how many rounds ago it was sent.
outcomes = st.lists(
    st.tuples(
        st.sampled_from([True] * 63 + [False]) | st.booleans(),
        st.floats(0, 0.9) | st.floats(0, 30),
        st.integers(0, 3),
    ),
    max_size=300,
)


def rounds(window: Window, count: int, latency: float = 0.05) -> list[int]:
    """Return the window after each of *count* rounds of nothing but successes."""
    sizes = []
    for _ in range(count):
        for _ in range(int(window.size)):
            window.succeeded(latency)
        sizes.append(int(window.size))
    return sizes


def keep_full(window: Window, seconds: float, *, latency: float, failing: float) -> None:
    """Have an endpoint get as many requests as it may."""
    chance, now, number = dice(), 0.0, 0
    answers: list[tuple[float, int, int]] = []
    while now < seconds:
        while len(answers) < int(window.size):
            number += 1
            takes = latency * chance.uniform(0.9, 1.1)
            heapq.heappush(answers, (now + takes, number, window.round))
        now, _, sent_in = heapq.heappop(answers)
        if chance.random() < failing:
            window.failed(sent_in)
        else:
            window.succeeded(latency)


def test_slow_start():
    """From a small single digit, doubling with each round of successes, up to 3000."""
    window = Window()
    assert INITIAL == int(window.size) < 10
    sizes = rounds(window, 10)
    assert [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3000] == sizes
    assert [3000, 3000] == rounds(window, 2)


def test_a_failure_takes_away_half_and_99_at_most():
    """Each one does, and what was on its way together is news once."""
    window = Window()
    rounds(window, 10)
    sent_in = window.round
    assert [True, False, False] == [window.failed(sent_in) for _ in range(3)]
    assert 3000 - 3 * 99 == window.size
    window.size = 100.0
    assert window.failed(window.round)
    assert 50 == window.size


@pytest.mark.parametrize("latency", [1.5, 3.0, 8.0])
def test_slow_answers_do_not_shrink_it(latency):
    """It doubles with each round, to 3000 and no further: latency pulls it back *to* 3000."""
    window = Window(maximum=10_000)
    assert [8, 16, 32, 64] == rounds(window, 4, latency)
    rounds(window, 8, latency)
    assert EXPONENTIAL_UP_TO == window.size


def test_beyond_3000_failures_bring_it_back_to_3000():
    """At once, where less than 99 % are acknowledged."""
    window = Window(maximum=10_000)
    rounds(window, 40)
    assert window.size > 3020
    while window.acked >= 0.99:
        window.failed(window.round)
    assert EXPONENTIAL_UP_TO == window.size


@pytest.mark.parametrize("latency", [0.05, 0.9])
@pytest.mark.parametrize(
    ("failing", "least", "most"), [(0.005, 3000, 3000), (0.02, 20, 400), (0.2, 2, 40)]
)
def test_where_it_settles(failing, least, most, latency):
    """With more than 99 % of successes it keeps up with whatever is published, else it is small."""
    window = Window()
    sizes = []
    for _ in range(60):
        keep_full(window, latency, latency=latency, failing=failing)
        sizes.append(window.size)
    assert least * 0.9 <= sum(sizes[30:]) / 30 <= most


@given(
    outcomes,
    st.integers(0, 700),
    st.just(5000) | st.integers(1, 5000),
    st.integers(2990, 5000) | st.integers(1, 5000),
)
@example([(False, 0.0, 0)], 700, 5000, 4000)
@example([(True, 800.0, 0)], 700, 5000, 4000)
def test_up_on_success_and_down_on_failure(events, earlier, maximum, size):
    """By one and by 99 up to 3000; above, a round adds one, while the endpoint keeps up."""
    window = Window(maximum=maximum)
    assert min(INITIAL, maximum) == window.size
    for _ in range(earlier):
        window.succeeded(0.0)
    window.size = float(min(size, maximum))
    acked, latencies = [True] * earlier, [0.0] * earlier
    for is_ack, latency, age in events:
        before = window.size
        acked.append(is_ack)
        if is_ack:
            latencies.append(latency)
            window.succeeded(latency)
        else:
            window.failed(window.round - age)
        assert fmean(latencies or [0]) == pytest.approx(window.latency, abs=1e-9)
        assert fmean(acked) == pytest.approx(window.acked)
        keeps_up = window.latency <= 1 and window.acked >= 0.99
        if is_ack and before < EXPONENTIAL_UP_TO:
            expected = min(before + 1, maximum)
        elif before <= EXPONENTIAL_UP_TO and not is_ack:
            expected = max(before - min(before / 2, 99), 1)
        elif not keeps_up:
            expected = EXPONENTIAL_UP_TO
        elif is_ack:
            expected = min(before + 1 / before, maximum)
        else:
            expected = max(before - 99 / before, EXPONENTIAL_UP_TO)
        assert expected == window.size


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3000", None])
def test_a_window_of_nonsense(value):
    """A whole number, 1 or more."""
    with pytest.raises(ConfigError, match="max_outstanding"):
        Window(maximum=value)


# -- backoff --------------------------------------------------------------------------------------


def test_it_begins_with_100_ms_and_doubles_to_a_minute():
    """Pub/Sub's page: "This time span can range between 100 milliseconds to 60 seconds."."""
    backoff = PushBackoff()
    delays = [backoff.delay]
    for _ in range(12):
        backoff.failed()
        delays.append(round(backoff.delay, 6))
    assert [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60, 60] == delays


def spacing(failing: float, *, evenly: bool) -> float:
    """Return the mean seconds between sends to an endpoint that fails so many of five."""
    chance, backoff, total = dice(), PushBackoff(), 0.0
    count = 20_000
    for number in range(count):
        total += backoff.delay
        fails = number % 5 < 5 * failing if evenly else chance.random() < failing
        backoff.failed() if fails else backoff.succeeded()
    return total / count


@pytest.mark.parametrize("evenly", [True, False])
def test_the_first_point(evenly):
    """Five messages and one nack a second: a send about every 500 ms."""
    assert 0.4 < spacing(0.2, evenly=evenly) < 0.6


def test_the_second_point():
    """Five nacks a second: a send every 30 to 60 seconds."""
    assert 30 <= spacing(1.0, evenly=True) <= 60


def test_it_grows_with_the_nack_rate():
    """At each step, evenly or not."""
    for evenly in (True, False):
        spacings = [spacing(of / 5, evenly=evenly) for of in range(6)]
        assert sorted(spacings) == spacings
    assert 0 == spacings[0]


def test_it_recovers():
    """From a minute, an endpoint that is back is asked freely within half a minute."""
    backoff = PushBackoff()
    for _ in range(100):
        backoff.failed()
    assert 60 == backoff.delay
    waited, asked = 0.0, 0
    while backoff.delay:
        backoff.succeeded()
        waited += backoff.delay
        asked += 1
    assert waited < 30
    assert asked < 40


def test_few_failures_cost_little():
    """At less than one in a hundred, nine of ten sends are not spaced."""
    chance, backoff, spaced = dice(), PushBackoff(), 0
    for _ in range(20_000):
        spaced += backoff.delay > 0
        backoff.failed() if chance.random() < 0.005 else backoff.succeeded()
    assert spaced < 2000


@given(st.lists(st.booleans(), max_size=500))
def test_the_backoff_stays_within_its_bounds(events):
    """None, or 100 ms to 60 s; failures never shorten it, successes never lengthen it."""
    backoff = PushBackoff()
    for is_ack in events:
        before = backoff.delay
        backoff.succeeded() if is_ack else backoff.failed()
        assert backoff.delay == 0 or SHORTEST <= backoff.delay <= LONGEST
        assert backoff.delay <= before if is_ack else backoff.delay >= before
