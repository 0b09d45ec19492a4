"""What can be checked in the documentation without running it: links, blocks, names, pictures."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import pulsar_retry as pr
from pulsar_retry import errors
from support.faults.reliability import rows_tests

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "examples").glob("*.md"),
    *(ROOT / "docker").glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
]

FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
#: A test and its arguments.
TEST = re.compile(r"^def (test_\w+)\(([^)]*)\)", re.MULTILINE)

#: Who tests a block of this language. What is `text` is shown and not run.
TESTED = {
    "python": "tests/docs, and tests/spark for docs/spark.md",
    "bash": "tests/unit/cli/test_documented_commands.py",
    "console": "tests/unit/cli/test_documented_commands.py",
    "": "tests/unit/cli/test_documented_commands.py",
    "yaml": "tests/docs/test_operating.py",
    "text": "nobody",
}

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


@each_page
def test_every_block_is_of_a_kind_that_is_tested(page: Path) -> None:
    """Python compiles here and runs there; `{directives}` are Sphinx's."""
    for language, code in FENCE.findall(text_of(page)):
        assert language in TESTED or language.startswith("{"), language
        if language == "python":
            compile(code, str(page), "exec")


@pytest.mark.parametrize(
    ("page", "least"), [("pubsub", 40), ("push", 40), ("replay", 30), ("reliability", 1)]
)
def test_every_test_that_it_names_exists(page: str, least: int) -> None:
    """A promise without a test would be none."""
    named = set(re.findall(r"`(test_\w+)`", text_of(ROOT / "docs" / f"{page}.md")))
    sources = "\n".join(text_of(path) for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > least
    assert set() == {name for name in named if f"def {name}(" not in sources}


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
    assert set(pr.__all__) - {"__version__"} == said | set(errors.__all__)


def test_every_page_of_the_reference_is_in_its_contents() -> None:
    """So that nobody has to guess its name."""
    contents = text_of(REFERENCE / "index.md").split("```{toctree}")[1]
    names = {path.stem for path in REFERENCE.glob("*.md")} - {"index"}

    assert names == set(re.findall(r"^(\w+)$", contents, re.MULTILINE))


def test_the_picture_shows_the_layers_that_are_checked() -> None:
    """In the order of import-linter's contract, those of one line side by side."""
    picture = ET.parse(ROOT / "docs" / "layers.svg")  # noqa: S314 - our own file
    texts = picture.iter("{http://www.w3.org/2000/svg}text")
    drawn = {each.text: float(each.attrib["y"]) for each in texts}
    contracts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = [
        [name.removeprefix("pulsar_retry.") for name in layer.split(" | ")]
        for layer in contracts[0]["layers"]
        if layer.startswith("pulsar_retry.")
    ]

    assert all(len({drawn[name] for name in layer}) == 1 for layer in layers)
    lines = [drawn[layer[0]] for layer in layers]
    assert lines == sorted(lines)
    assert len(set(lines)) == len(lines)
