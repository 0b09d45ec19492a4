"""The simulation is worth something: it finds errors that are planted in the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pulsar_retry

MUTANTS = sorted((Path(__file__).parent / "mutants").glob("*.patch"))
TESTS = Path(__file__).parents[1]

#: The maximum number of schedules until an error is found.
SCHEDULES = 600


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda path: path.stem)
def test_a_planted_error_is_found(mutant: Path, tmp_path: Path) -> None:
    """A copy of the package with this error fails in one of the first schedules."""
    package = Path(pulsar_retry.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    patch = ["git", "apply", "--unsafe-paths", f"--directory={tmp_path}", str(mutant)]
    subprocess.run(patch, check=True, cwd=tmp_path)
    # PYTHONSAFEPATH: otherwise the package in the current folder would be found first.
    path = os.pathsep.join([str(tmp_path), str(TESTS)])
    found = subprocess.run(
        [sys.executable, "-m", "support.simulation.search", "0", str(SCHEDULES), "--as-it-is"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=600,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    assert "schedule " in found.stdout, found.stderr
    print(f"{mutant.stem}: {found.stdout.splitlines()[0]}")
