"""The pages of the documentation that map somebody else's rules to ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "least"), [("pubsub", 40), ("push", 40), ("replay", 30)])
def test_every_test_that_it_names_exists(page: str, least: int) -> None:
    """A promise without a test would be none."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    assert len(named) > least
    assert set() == {name for name in named if f"def {name}(" not in sources}
