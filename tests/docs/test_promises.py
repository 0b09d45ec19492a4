"""Each promise of the pages on guarantees, attempts, subscribers, push and replay names its test.

A promise is a bullet or a row of a table. Its test is named in it, as ``test_…``, or listed in
promises.toml beside this file, by the words that it begins with. What is no promise of ours (a
figure, a fact of Pulsar's) is listed with the reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("guarantees", "attempts", "pull", "push", "replay", "pubsub")
INDEX = tomllib.loads((Path(__file__).parent / "promises.toml").read_text(encoding="utf-8"))

_NAMED = re.compile(r"`(test_\w+)`")
_RULE = re.compile(r"\| *:?-+")


def promises(page: str) -> list[str]:
    """Return the bullets and the rows of tables of a page, without their marks, each in a line."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        if line.startswith("- "):
            more = lines[number + 1 :]
            end = next((n for n, each in enumerate(more) if not each.startswith("  ")), len(more))
            found.append(" ".join([line[2:], *(each.strip() for each in more[:end])]))
        elif line.startswith("|") and not _RULE.match(line):
            is_head = number + 1 < len(lines) and _RULE.match(lines[number + 1])
            if not is_head:
                found.append(line.strip("| "))
    return found


#: The names of all tests, also of those in classes.
TESTS = {
    node.name
    for path in (ROOT / "tests").rglob("test_*.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
}


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_has_a_test(page: str) -> None:
    """A new one without a test fails here, and so does an entry for one that is gone."""
    entries = INDEX.get(page, {})
    used: set[str] = set()
    without = []
    for promise in promises(page):
        fitting = [words for words in entries if promise.startswith(words)]
        used.update(fitting)
        if not fitting and not _NAMED.search(promise):
            without.append(promise)
    assert [] == without, f"name their tests in them, or in {page} of promises.toml"
    assert [] == sorted(set(entries) - used), "no promise begins like this"


def test_every_named_test_exists() -> None:
    """In all pages and in the index, where a reason is a text and tests are a list."""
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in _NAMED.findall(page)}
    entries = [each for page in PAGES for each in INDEX.get(page, {}).items()]
    for words, tests in entries:
        assert tests, words
        named.update([] if isinstance(tests, str) else tests)
    assert len(named) > 300
    assert set() == named - TESTS
