"""Flow control, without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.engine.receiver import FlowGate
from pulsar_retry.pull.settings import PAUSE, RESUME


def test_the_load_is_the_larger_part() -> None:
    """Of the messages and of the bytes."""
    gate = FlowGate(pr.FlowControl(max_messages=10, max_bytes=1000))
    assert (0.5, 0.9, 1.2) == (gate.load(5, 100), gate.load(5, 900), gate.load(12, 0))


def test_it_pauses_at_the_limit_and_resumes_below_four_fifths() -> None:
    """So it does not flutter around the limit."""
    gate = FlowGate(pr.FlowControl(max_messages=10))
    steps = [9, 10, 9, 8, 7, 8, 9, 10]
    assert [True, False, False, False, True, True, True, False] == [
        gate.is_open(count, 0) for count in steps
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3000))))
def test_what_it_lets_in(steps: list[tuple[int, int]]) -> None:
    """Never at a limit, always below the lower mark; in between it stays as it was."""
    gate, was_open = FlowGate(pr.FlowControl(max_messages=20, max_bytes=2000)), True
    for count, size in steps:
        load = gate.load(count, size)
        is_open = gate.is_open(count, size)
        assert is_open == (load < RESUME or (load < PAUSE and was_open))
        was_open = is_open


@pytest.mark.parametrize(
    ("argument", "value", "accepted"),
    [("letter_send_timeout", "30s", "seconds"), ("pubsub_attributes", "no", "a bool")],
)
def test_letters_are_checked(argument: str, value: object, accepted: str) -> None:
    """When they are made, not when the subscriber runs."""
    with pytest.raises(pr.ConfigError, match=f"^{argument}='{value}': expected {accepted}"):
        pr.Letters(**{argument: value})


@pytest.mark.parametrize("argument", ["max_messages", "max_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "1"])
def test_limits_are_whole_numbers(argument: str, value: object) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=f"{argument}=.*: expected a whole number, 1 or more"):
        pr.FlowControl(**{argument: value})
