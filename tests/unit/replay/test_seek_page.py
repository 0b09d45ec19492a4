"""The page about replays."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_it_names_exists():
    """A promise without a test would be none."""
    page = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )

    assert len(named) > 30
    assert set() == {name for name in named if f"def {name}(" not in sources}
