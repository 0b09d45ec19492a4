"""What a pacer lets through, in virtual time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.pull.engine.hand import Outlook
from pulsar_retry.push.pacing import CATCH_UP, Pacer, RateLimit, Ticket, Window


class Clock:
    """Tells a time that tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Give a clock that stands."""
    return Clock()


@pytest.fixture
def pacer(clock: Clock) -> Pacer:
    """Give a pacer with a new window."""
    return Pacer(Window(), clock=clock)


def send(pacer: Pacer) -> Ticket:
    """Send one request."""
    assert pacer.may_begin()
    return pacer.begin()


def test_the_window_is_the_limit(pacer):
    """Of what is outstanding; as much again may be received for when answers come."""
    tickets = [send(pacer) for _ in range(4)]
    assert (0, Outlook(4, math.inf, is_paced=False)) == (pacer.may_begin(), pacer.outlook())
    pacer.leave(tickets.pop(), acked=True)
    assert (2, Outlook(7, math.inf, is_paced=False)) == (pacer.may_begin(), pacer.outlook())


def test_backing_off(pacer, clock):
    """After a failure nothing is sent for 100 ms, then one at a time; a few may wait for that."""
    pacer.leave(send(pacer), acked=False)
    assert (0, (16, pytest.approx(0.1), True)) == (pacer.may_begin(), pacer.outlook())
    clock.now += 0.1
    assert (1, Outlook(16, math.inf, is_paced=True)) == (pacer.may_begin(), pacer.outlook())
    ticket = send(pacer)
    assert 0 == pacer.may_begin()
    pacer.leave(ticket, acked=False)
    assert pytest.approx(0.2) == pacer.outlook().wait


def test_the_endpoint_asks_to_wait(pacer, clock):
    """Nothing is sent before, although others succeed; the backoff counts if it is longer."""
    tickets = [send(pacer) for _ in range(3)]
    pacer.leave(tickets.pop(), acked=False, retry_after=30.0)
    pacer.leave(tickets.pop(), acked=True)
    assert (0, 30.0) == (pacer.may_begin(), pacer.pace().delay)
    assert Outlook(16, 30.0, is_paced=True) == pacer.outlook()
    pacer.leave(tickets.pop(), acked=False, retry_after=2.0)  # less than what was asked before
    clock.now += 29.9
    assert pytest.approx(0.1) == pacer.outlook().wait
    clock.now += 0.1
    for _ in range(20):
        pacer.leave(send(pacer), acked=False, retry_after=1.0)
        clock.now += pacer.outlook().wait
    assert pacer.pace().delay > 30


def test_a_rate(clock):
    """Each is sent at its turn, also after a pause; no more is received than a second's."""
    pacer = Pacer(Window(), RateLimit(10), clock=clock)
    assert (1, Outlook(8, math.inf, is_paced=True)) == (pacer.may_begin(), pacer.outlook())
    pacer.leave(send(pacer), acked=True)
    assert 0 == pacer.may_begin()
    assert 0 < pacer.outlook().wait <= 0.1
    sent = 0
    for _ in range(1000):
        clock.now += 0.01
        while pacer.may_begin():
            pacer.leave(send(pacer), acked=True)
            sent += 1
    assert 99 <= sent <= 101
    assert 10 == pacer.outlook().room


def test_failures_on_their_way_together_count_once(pacer):
    """For the backoff: they tell the same. The window falls with each."""
    for ticket in [send(pacer) for _ in range(4)]:
        pacer.leave(ticket, acked=False)
    assert (0.1, 1) == (pacer.pace().delay, pacer.pace().window)


def test_what_was_given_up(pacer):
    """It is not outstanding any more, and tells nothing."""
    send(pacer)
    pacer.forget()
    assert (0, 0.0, 4) == (pacer.pace().outstanding, pacer.pace().delay, pacer.pace().window)


def fail(pacer: Pacer, clock: Clock, times: int) -> None:
    """Have requests fail one after the other, each as soon as it may be sent."""
    for _ in range(times):
        clock.now += 0 if pacer.may_begin() else pacer.outlook().wait
        pacer.leave(send(pacer), acked=False)


def test_an_endpoint_that_fails(pacer, clock):
    """It is a problem after five failures and five seconds, until something is acknowledged."""
    fail(pacer, clock, 4)
    clock.now += 10
    assert "" == pacer.problem()  # there were too few
    fail(pacer, clock, 1)
    assert "the endpoint has acknowledged nothing for 11 s" == pacer.problem()
    clock.now += pacer.outlook().wait
    pacer.leave(send(pacer), acked=True)
    fail(pacer, clock, 1)
    assert "" == pacer.problem()


def test_a_quick_burst_of_failures(pacer, clock):
    """It says little."""
    for ticket in [send(pacer) for _ in range(4)]:
        pacer.leave(ticket, acked=False)
    fail(pacer, clock, 3)
    assert "" == pacer.problem()
    clock.now += 5
    assert "acknowledged nothing" in pacer.problem()


def test_an_endpoint_that_nothing_was_sent_to(pacer, clock):
    """It is no problem when it could have been tried for a minute, and nothing was there."""
    fail(pacer, clock, 4)
    pacer.leave(send(pacer) if pacer.may_begin() else pacer.begin(), acked=False, retry_after=600)
    clock.now += 659
    assert "acknowledged nothing" in pacer.problem()
    send(pacer)
    clock.now += 61 + pacer.pace().delay
    assert "acknowledged nothing" in pacer.problem()  # perhaps it is slow
    pacer.forget()
    assert "" == pacer.problem()


def test_whoever_waits_is_told(pacer):
    """When the backoff has changed."""
    told = []
    pacer.attach(lambda: told.append(pacer.may_begin()))
    pacer.leave(send(pacer), acked=True)  # a worker is free, and goes on itself
    assert [] == told
    pacer.leave(send(pacer), acked=False)
    assert [0] == told


def test_latency(pacer, clock):
    """From the send to the outcome."""
    ticket = send(pacer)
    clock.now += 1.5
    pacer.leave(ticket, acked=True)
    assert pytest.approx(1.5) == pacer.pace().latency


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "ack", "nack", "asks", "wait"]),
            st.floats(0, 70),
        ),
        max_size=200,
    ),
    st.none() | st.floats(0.1, 100),
)
def test_it_never_lets_more_out_than_it_says(events, rate):
    """Not beyond window and rate, nor before the delay or what is asked."""
    clock = Clock()
    limit = None if rate is None else RateLimit(rate)
    pacer = Pacer(Window(maximum=50), limit, clock)
    tickets: list[Ticket] = []
    last = asked = -math.inf
    for kind, value in events:
        pace = pacer.pace()
        match kind:
            case "send":
                if pacer.may_begin():
                    assert len(tickets) < pace.window
                    assert clock.now >= asked
                    assert rate is None or clock.now - last >= 1 / rate - CATCH_UP - 1e-9
                    assert clock.now - last >= pace.delay - 1e-9
                    last = clock.now
                    tickets.append(pacer.begin())
            case "wait":
                clock.now += value
            case "asks" if tickets:
                pacer.leave(tickets.pop(), acked=False, retry_after=value)
                asked = max(asked, clock.now + value)
            case "ack" | "nack" if tickets:
                pacer.leave(tickets.pop(), acked=kind == "ack")
        assert len(tickets) == pacer.pace().outstanding
        assert pacer.outlook().room >= 0 or pacer.pace().outstanding > pacer.pace().window
