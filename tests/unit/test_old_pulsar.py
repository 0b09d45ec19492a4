"""tools/old_pulsar.py, where an old release cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "old_pulsar.py"


@pytest.mark.parametrize(("ci", "code"), [({}, 0), ({"CI": "true"}, 1)])
def test_a_skip_is_no_success_in_ci(tmp_path, ci, code):
    """It says that it has run nothing, and why; in CI it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = kept | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)} | ci
    done = subprocess.run(
        [sys.executable, TOOL, "2.7.2", "nothing"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (code, "skipped, because there is no Maven on PATH\n") == (done.returncode, done.stdout)
