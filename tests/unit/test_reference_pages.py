"""The reference in docs/reference, which is made from the docstrings."""

from __future__ import annotations

import re
from pathlib import Path

import pulsar_retry as pr
from pulsar_retry import errors

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_every_public_name_is_there():
    """By name, or in a module that is shown as a whole; a new one has to be put on a page."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    said = set(re.findall(r"auto(?:class|data|function):: pulsar_retry\.(\w+)(?:\(\))?\n", text))

    assert ".. automodule:: pulsar_retry.errors" in text
    assert set(pr.__all__) - {"__version__"} == said | set(errors.__all__)


def test_every_page_is_in_the_contents():
    """So that nobody has to guess its name."""
    contents = (REFERENCE / "index.md").read_text(encoding="utf-8")
    names = {path.stem for path in REFERENCE.glob("*.md")} - {"index"}

    assert names == set(re.findall(r"^(\w+)$", contents.split("```{toctree}")[1], re.MULTILINE))
