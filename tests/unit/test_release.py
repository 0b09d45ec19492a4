"""What a release is made of; `tox run -e release` makes one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pulsar_retry

ROOT = Path(__file__).parents[2]


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
    done = notes(f"v{pulsar_retry.__version__}")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("### Added") == 1
    assert "\n## [" not in done.stdout
    assert "[Unreleased]:" not in done.stdout


def test_a_tag_of_another_version_is_refused():
    """Before anything is built or published."""
    done = notes("v0.0.1")

    assert done.returncode == 1
    assert "_version.py says" in done.stderr


def test_only_the_repository_that_the_package_names_releases_it():
    """Otherwise the package index would send users to a repository of somebody else."""
    tag = f"v{pulsar_retry.__version__}"

    assert notes(tag, "pulsar-retry/pulsar-retry").returncode == 0
    done = notes(tag, "somebody/pulsar-retry")
    assert done.returncode == 1
    assert "setup.cfg" in done.stderr


def test_the_changelog_has_an_address_for_each_version():
    """The newest first, below what is not released."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)

    assert headings == re.findall(r"^\[(.+?)\]: https://", text, re.MULTILINE)
    assert headings[:2] == ["Unreleased", pulsar_retry.__version__]


def test_every_checked_file_of_the_hosted_ci_exists():
    """A file in `.github` that tox.ini forgets is not checked against its schema."""
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.yml")}

    assert files == set(re.findall(r"\.github/\S+", tox))
