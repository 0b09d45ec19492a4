"""The model of the protocol is checked, and so are its checks; docs/protocol.md explains it."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from support.model.checker import Bounds, check, distinct_states, graph
from support.model.machine import Machine

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

DEDUPE = Bounds()
CLOCKS = attrs.evolve(DEDUPE, clocks=False)
REDRIVE = Bounds(retries=0, redrives=1, own=False)
ENDS = Bounds(
    window=False,
    own=False,
    kinds=frozenset({"refuse", "lose", "kill"}),
    properties=("Ends",),
)
DROPS = Bounds(kinds=frozenset({"kill", "lose"}), properties=("DropsLeaveOne",))
ALL = {
    "duplicates": DEDUPE,
    "wrong clocks": CLOCKS,
    "redrive": REDRIVE,
    "ends": ENDS,
    "drops": DROPS,
}


@pytest.mark.parametrize("name", ALL)
def test_the_model_keeps_what_is_promised(name: str, tmp_path: Path) -> None:
    """Every reachable state, within the bounds that the page names, and with as many states."""
    output = check(ALL[name], tmp_path)
    assert "No error has been found" in output, output
    page = PAGE.read_text(encoding="utf-8")
    row = re.search(rf"^\| {name} \|.*\| ([\d,]+) \|$", page, re.MULTILINE)
    print(f"{name}: {distinct_states(output):,} states")
    assert row is not None
    assert distinct_states(output) == int(row[1].replace(",", ""))


#: For each planted error: the bounds that show it, and what breaks.
PLANTED = {
    "ack_before_receipt": (DEDUPE, "Invariant HasCopy is violated"),
    "lost_come_back": (ENDS, "Temporal properties were violated"),
    "no_count": (DEDUPE, "Invariant Bounded is violated"),
    "refusal_spends": (
        Bounds(retries=2, own=False, kinds=frozenset({"refuse"})),
        "Invariant BudgetIsFailures is violated",
    ),
    "no_loop_guard": (REDRIVE, "Invariant NoMultiplication is violated"),
    "dedupe_by_content": (
        Bounds(consumers=("c1",), redrives=1, faults=0, own=False),
        "Invariant HasCopy is violated",
    ),
    "superseded_counts": (
        attrs.evolve(DROPS, invariants=()),
        "property DropsLeaveOne is violated",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_error_is_found(bug: str, tmp_path: Path) -> None:
    """Each invariant, and each property, finds an error that breaks it."""
    bounds, message = PLANTED[bug]
    output = check(attrs.evolve(bounds, bug=bug), tmp_path)
    assert message in output, output[-3000:]


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(faults=0, symmetric=False),
        Bounds(consumers=("c1",), faults=1, symmetric=False),
        Bounds(consumers=("c1",), retries=0, redrives=1, own=False, faults=1, symmetric=False),
    ],
    ids=["two consumers", "faults", "redrive"],
)
def test_the_state_machine_in_python_is_the_model(bounds: Bounds, tmp_path: Path) -> None:
    """They have the same states and the same steps, so logs are compared with the model."""
    machine = Machine(
        consumers=bounds.consumers,
        max_retries=bounds.retries,
        max_redrives=bounds.redrives,
        max_copies=bounds.copies,
        max_faults=bounds.faults,
        window=bounds.window,
        own=bounds.own,
    )
    states, steps = {machine.initial()}, set()
    todo = list(states)
    while todo:
        state = todo.pop()
        assert not machine.broken(state)
        for _, following in machine.steps(state):
            if following != state:
                steps.add((state, following))
            if following not in states:
                states.add(following)
                todo.append(following)
    known, pairs = graph(bounds, tmp_path)
    assert known == states
    assert pairs == steps
