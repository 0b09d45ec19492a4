"""What can be checked in the documentation without running it: links, blocks, names, pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pulsar_retry as pr
from pulsar_retry import _lazy
from support.faults.reliability import rows_tests

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "examples").glob("*.md"),
    *(ROOT / "docker").glob("*.md"),
    ROOT / "tests" / "benchmarks" / "README.md",
    *(ROOT / "docs").rglob("*.md"),
]

FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
#: A test and its arguments.
TEST = re.compile(r"^def (test_\w+)\(([^)]*)\)", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def text_of(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = HEADING.findall(FENCE.sub("", text_of(path)))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading in it where one is named, as GitHub does it."""
    for link in LINK.findall(CODE.sub("", text_of(page))):
        name, _, anchor = link.partition("#")
        if ":" in name:  # https://
            continue
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_fault_has_its_row() -> None:
    """The table is whole: no test of a fault is missing, and each row is of one."""
    sources = [text_of(path) for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {
        name
        for source in sources
        if "fault.survived(" in source
        for name, arguments in TEST.findall(source)
        if "fault" in re.findall(r"\w+", arguments)
    }
    assert tests == set(rows_tests(text_of(ROOT / "docs" / "reliability.md")))


def test_every_public_name_is_in_the_reference() -> None:
    """By name, or in a module that is shown as a whole; a new one has to be put on a page."""
    text = "\n".join(text_of(path) for path in REFERENCE.glob("*.md"))
    said = set(re.findall(r"auto(?:class|data|function):: pulsar_retry\.(\w+)(?:\(\))?\n", text))

    assert ".. automodule:: pulsar_retry.errors" in text
    shown = {name for name, module in _lazy.ORIGINS.items() if module == "pulsar_retry.errors"}
    assert set(pr.__all__) - {"__version__"} == said | shown
