"""The tests that docs/testing.md prints pass as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "testing.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("block", [block for block in BLOCKS if "def test_" in block])
def test_a_printed_test_passes(block: str, tmp_path: Path) -> None:
    """In a project of its own, with the fixtures that come with the package."""
    (tmp_path / "test_printed.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_pulsar_retry", "--rootdir=."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_there_are_printed_tests() -> None:
    """The pattern above still finds what it is for."""
    assert 2 == sum("def test_" in block for block in BLOCKS)
