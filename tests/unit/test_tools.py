"""The tools that run tests, where what they run cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.parametrize(("ci", "code"), [({}, 0), ({"CI": "true"}, 1)])
@pytest.mark.parametrize(
    ("command", "lacks"),
    [(["old_pulsar.py", "2.7.2", "nothing"], "Maven"), (["upstream_tests.py"], "git")],
)
def test_a_skip_is_no_success_in_ci(tmp_path, command, lacks, ci, code):
    """It says that it has run nothing, and why; in CI it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = kept | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)} | ci
    tool, *arguments = command
    done = subprocess.run(
        [sys.executable, TOOLS / tool, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = f"skipped, because there is no {lacks} on PATH\n"
    assert (code, expected) == (done.returncode, done.stdout)
