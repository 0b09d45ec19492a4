"""The checks that arguments of all parts of the package pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.policy.checks import flag, not_blank, one_of, positive, whole

MODES = partial(one_of, accepted=("drain", "abandon"))


@pytest.mark.parametrize(
    ("check", "good", "bad", "accepted"),
    [
        (whole, [1, 2**70], [0, -1, 1.0, True, "1", None], "a whole number, 1 or more"),
        (partial(whole, least=0, most=3), [0, 3], [-1, 4], "a whole number, 0 or more"),
        (flag, [True, False], [0, 1, None, "no"], "a bool"),
        (not_blank, ["a", " a "], ["", " \t", None, 5], "a text that is not blank"),
        (positive, [0.001, 1.0], [0, 0.0, timedelta(0)], "more than 0 seconds"),
        (positive, [], [-1, None], "seconds (a number) or a timedelta, 0 or more"),
        (MODES, ["drain", "abandon"], ["", "Drain", None, 5], '"drain" or "abandon"'),
    ],
)
def test_an_argument_is_returned_or_refused(
    check: Callable[..., Any], good: list[Any], bad: list[Any], accepted: str
) -> None:
    """The error names the argument, the value and what is accepted."""
    assert good == [check("size", value) for value in good]
    for value in bad:
        expected = f"size={value!r}: expected {accepted}"
        with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
            check("size", value)


def test_a_positive_duration_is_seconds() -> None:
    """Whatever it was given as."""
    assert 90.0 == positive("wait", timedelta(minutes=1.5))
