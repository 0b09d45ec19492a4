"""Waiting for what has to happen."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from time import monotonic, sleep  # a test may replace those of `time`
from typing import Any


def eventually(condition: Callable[[], Any], within: float = 180.0) -> None:
    """Wait until *condition* returns something true.

    Raises:
        AssertionError: it did not within so many seconds. The error shows the condition, what it
            returned last, and the variables that it uses.
    """
    __tracebackhide__ = True
    last = _waited(condition, within)
    assert last, f"not within {within:g} s: {_shown(condition)}; at last {reprlib.repr(last)}"


def is_soon(condition: Callable[[], Any], within: float) -> bool:
    """Wait at most *within* seconds until *condition* is true; return whether it is."""
    return bool(_waited(condition, within))


def _waited(condition: Callable[[], Any], within: float) -> Any:
    deadline, pause = monotonic() + within, 0.001
    while not (last := condition()) and monotonic() < deadline:
        sleep(pause)
        pause = min(2 * pause, 0.05)
    return last


def _shown(condition: Callable[[], Any]) -> str:
    """Return a condition as it is written, with the values of the variables around it."""
    if not inspect.isfunction(condition):
        return repr(condition)
    try:
        lines = inspect.getsource(condition).split("\n")
    except OSError:
        lines = [repr(condition)]
    around = inspect.getclosurevars(condition).nonlocals
    values = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in around.items())
    return " ".join(map(str.strip, lines)).strip() + (f" with {values}" if values else "")
