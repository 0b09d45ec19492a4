"""The model of the claims is checked, and so are its checks; docs/crashes.md explains it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.model.checker import distinct_states, run_checker

PAGE = Path(__file__).parents[2] / "docs" / "crashes.md"

INVARIANTS = (
    "InnocentsLive",
    "AtMostN",
    "ExactlyN",
    "NothingIsLost",
    "PoisonIsNotAcked",
    "OneSuspect",
    "AloneIsAlone",
)


def config(
    *,
    n: int = 2,
    kills: int = 0,
    cuts: int = 0,
    agains: int = 0,
    bug: str = "none",
    ends: bool = False,
) -> str:
    """Return the configuration of TLC; with *ends*, the liveness is checked, too."""
    lines = [
        "SPECIFICATION Spec" if ends else "INIT Init\nNEXT Next",
        "CHECK_DEADLOCK FALSE",
        "CONSTANT Procs = {p1, p2}",
        "CONSTANT Msgs = {poison, innocent}",
        "CONSTANT Poison = {poison}",
        f"CONSTANT MaxCrashes = {n}",
        f"CONSTANT MaxKills = {kills}",
        f"CONSTANT MaxCuts = {cuts}",
        f"CONSTANT MaxAgains = {agains}",
        f"CONSTANT Whole = {str(ends).upper()}",
        f'CONSTANT Bug = "{bug}"',
        *(f"CONSTANT {each} = {each}" for each in ("p1", "p2", "poison", "innocent")),
        *(f"INVARIANT {each}" for each in INVARIANTS),
        *(["PROPERTY Ends"] if ends else []),
    ]
    return "\n".join(lines) + "\n"


ALL = {
    "crashes": config(n=3, agains=1, ends=True),
    "kills": config(kills=1, ends=True),
    "connections": config(cuts=1),
}


@pytest.mark.parametrize("name", ALL)
def test_the_model_keeps_what_is_promised(name: str, tmp_path: Path) -> None:
    """Every reachable state, within the bounds that the page names, and with as many states."""
    output = run_checker("Claims", ALL[name], tmp_path, "-workers", "1")
    assert "No error has been found" in output, output
    page = PAGE.read_text(encoding="utf-8")
    row = re.search(rf"^\| {name} \|.*\| ([\d,]+) \|$", page, re.MULTILINE)
    assert row is not None
    assert distinct_states(output) == int(row[1].replace(",", ""))


#: For each planted error: the bounds that show it, and what breaks.
PLANTED = {
    "hasty": ({"cuts": 2}, "InnocentsLive"),
    "no_alone": ({"kills": 1}, "InnocentsLive"),
    "no_claim": ({}, "AtMostN"),
    "late_leave": ({"cuts": 1}, "AtMostN"),
    "forgets": ({"agains": 1}, "AtMostN"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_error_is_found(bug: str, tmp_path: Path) -> None:
    """Each makes an innocent message dead, or lets the poison kill more processes than it may."""
    bounds, invariant = PLANTED[bug]
    output = run_checker("Claims", config(bug=bug, **bounds), tmp_path, "-workers", "1")
    assert f"Invariant {invariant} is violated" in output, output[-3000:]
