"""The code blocks of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Who tests a block of this language. What is `text` is shown and not run.
TESTED = {
    "python": "tests/docs, and tests/spark for docs/spark.md",
    "json": "tests/unit/console/test_notifying.py",
    "bash": "tests/unit/cli/test_documented_commands.py",
    "console": "tests/unit/cli/test_documented_commands.py",
    "": "tests/unit/cli/test_documented_commands.py",
    "yaml": "tests/docs/test_operating.py",
    "text": "nobody",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_is_of_a_kind_that_is_tested(page):
    """Python compiles here and runs there; `{directives}` are Sphinx's."""
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        assert language in TESTED or language.startswith("{"), language
        if language == "python":
            compile(code, str(page), "exec")
