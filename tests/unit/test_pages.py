"""The pages of the documentation that map somebody else's rules to ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.faults.reliability import rows_tests

ROOT = Path(__file__).parents[2]

#: A test and its arguments.
_TEST = re.compile(r"^def (test_\w+)\(([^)]*)\)", re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "least"), [("pubsub", 40), ("push", 40), ("replay", 30), ("reliability", 1)]
)
def test_every_test_that_it_names_exists(page: str, least: int) -> None:
    """A promise without a test would be none."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    assert len(named) > least
    assert set() == {name for name in named if f"def {name}(" not in sources}


def test_every_fault_has_its_row() -> None:
    """The table is whole: no test of a fault is missing, and each row is of one."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {
        name
        for source in sources
        if "fault.survived(" in source
        for name, arguments in _TEST.findall(source)
        if "fault" in re.findall(r"\w+", arguments)
    }
    rows = rows_tests((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))
    assert tests == set(rows)
