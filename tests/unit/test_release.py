"""What a release is made of; `tox run -e release` makes one."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pulsar_retry

ROOT = Path(__file__).parents[2]

part_about = runpy.run_path(str(ROOT / "tools" / "release.py"))["part_about"]


def notes(tag: str, repository: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program that prints the notes of a release, as the hosted CI of *repository*."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "release.py"), "--notes", tag],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"GITHUB_REPOSITORY": repository},
    )


def test_the_notes_are_the_part_of_the_changelog():
    """Of this version alone, without its heading and without the addresses at the end."""
    changelog = """# Changelog

## [Unreleased]

- Not yet.

## [1.1.0] - 2026-02-01

### Added

- This.

## [1.0.0] - 2026-01-01

- Before.

[Unreleased]: https://localhost/compare
"""
    assert part_about("1.1.0", changelog) == "### Added\n\n- This.\n"
    assert part_about("1.0.0", changelog) == "- Before.\n"
    assert part_about("1.2.0", changelog) is None


def test_a_version_that_the_changelog_does_not_date_is_not_released():
    """Whoever tags it would publish a release that nobody has described."""
    done = notes(f"v{pulsar_retry.__version__}")

    assert done.returncode == 1
    assert "CHANGELOG.md has no part" in done.stderr


def test_a_tag_of_another_version_is_refused():
    """Before anything is built or published."""
    done = notes("v0.0.1")

    assert done.returncode == 1
    assert "_version.py says" in done.stderr


def test_only_the_repository_that_the_package_names_releases_it():
    """Otherwise the package index would send users to a repository of somebody else."""
    tag = f"v{pulsar_retry.__version__}"

    assert "setup.cfg" not in notes(tag, "pulsar-retry/pulsar-retry").stderr
    done = notes(tag, "somebody/pulsar-retry")
    assert done.returncode == 1
    assert "setup.cfg" in done.stderr
