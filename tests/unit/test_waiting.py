"""`eventually` of the tests' support."""

from __future__ import annotations

import pytest

from support.waiting import eventually, is_soon


def test_what_comes_true_is_waited_for() -> None:
    """And what does not is shown, with its last value and the variables that it uses."""
    answers = [False, [], 1]
    eventually(lambda: answers.pop(0))
    assert [] == answers
    topic = "orders"
    with pytest.raises(AssertionError, match=r"not within 0 s: .*topic\[9:\].*orders.*at last ''"):
        eventually(lambda: topic[9:], within=0)
    with pytest.raises(AssertionError, match=r"at last False"):
        eventually(bool, within=0)


def test_what_may_not_come_true_is_told() -> None:
    """Without an error."""
    assert not is_soon(bool, within=0)
    assert is_soon(object, within=0)
