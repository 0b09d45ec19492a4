"""The model of durable lanes is checked, and so are its checks (docs/durable-lanes.md)."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from support.model.checker import LaneBounds, check, distinct_states

PAGE = Path(__file__).parents[2] / "docs" / "durable-lanes.md"

ENDS = ("Ends", "Frees")
KILLS = LaneBounds(kinds=frozenset({"kill"}))
CUTS = LaneBounds(kinds=frozenset({"cut"}), hand=1, lags=False, log=14)
ALL = {
    "no fault": LaneBounds(messages=3, fails=2, properties=ENDS),
    "moves": LaneBounds(kinds=frozenset({"move"}), faults=2, properties=ENDS),
    "lost receipts": LaneBounds(kinds=frozenset({"lose"}), properties=ENDS),
    "kills": KILLS,
    "kills, ends": attrs.evolve(KILLS, messages=1, properties=ENDS),
    "cuts of the stream": LaneBounds(kinds=frozenset({"cut stream"}), properties=ENDS),
    "cuts of the topic": CUTS,
}


@pytest.mark.parametrize("name", ALL)
def test_the_model_keeps_what_is_promised(name: str, tmp_path: Path) -> None:
    """Every reachable state, within the bounds that the page names, and with as many states."""
    output = check(ALL[name], tmp_path)
    assert "No error has been found" in output, output[-6000:]
    print(f"{name}: {distinct_states(output):,} states")  # noqa: T201
    row = re.search(
        rf"^\| {name} \|.*\| ([\d,]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert row is not None
    assert distinct_states(output) == int(row[1].replace(",", ""))


#: For each planted error: the bounds that show it, and what breaks.
PLANTED = {
    "no_barrier": (ALL["moves"], "NoInversion"),
    "no_claim": (ALL["moves"], "IsCovered"),
    "no_own_claim": (ALL["moves"], "IsCovered"),
    "early_release": (ALL["no fault"], "IsCovered"),
    "early_report": (ALL["no fault"], "IsCovered"),
    "release_all": (ALL["moves"], "IsCovered"),
    "release_older": (CUTS, "IsCovered"),
    "no_confirm": (CUTS, "IsCovered"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_error_is_found(bug: str, tmp_path: Path) -> None:
    """Each rule is necessary."""
    bounds, invariant = PLANTED[bug]
    output = check(attrs.evolve(bounds, bug=bug, properties=()), tmp_path)
    assert f"Invariant {invariant} is violated" in output, output[-3000:]
