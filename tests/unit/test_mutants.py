"""The planted errors of `tox -e simulation` still fit the code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("git") is None, reason="skipped, because git is not installed")
def test_every_mutant_applies() -> None:
    """Otherwise a change of the code would end the search for the error without a word."""
    mutants = sorted((ROOT / "tests" / "simulation" / "mutants").glob("*.patch"))
    assert mutants
    for mutant in mutants:
        command = ["git", "apply", "--check", str(mutant)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
