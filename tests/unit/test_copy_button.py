"""The button that copies a block of code on the site (docs/_static/copy.js)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import Browser, find_chromium

SCRIPT = Path(__file__).parents[2] / "docs" / "_static" / "copy.js"
WRITE = "navigator.clipboard.writeText = async (text) => { window.copied = text; }"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with an empty page that can use the clipboard."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("skipped, because there is no Chromium here (Debian's package: chromium)")
    page = tmp_path_factory.mktemp("site") / "page.html"
    page.write_text("<!doctype html><main></main>", encoding="utf-8")
    with Browser(chromium) as browser:
        browser.open(page.as_uri())
        browser.wait_for("document.querySelector('main')")
        browser.evaluate(WRITE)
        yield browser


@pytest.mark.parametrize(
    ("block", "copied"),
    [
        ("pip install it\n", "pip install it\n"),
        ("$ pulsar-retry dlq ls\n2 topics\n$ ls\n", "pulsar-retry dlq ls\nls"),
        ("$ curl \\\n    URL\n{\n...\n}\n", "curl \\\n    URL"),
        (">>> for x in y:\n...     print(x)\n...\n1\n>>> x\n", "for x in y:\n    print(x)\n\nx"),
        ("x = ...\n... = y\n", "x = ...\n... = y\n"),
    ],
    ids=["plain", "shell", "continued", "Python", "dots"],
)
def test_what_is_copied(browser: Browser, block: str, copied: str) -> None:
    """Commands without prompts and output; everything else as it is."""
    html = json.dumps(f"<div class=highlight><pre>{block.replace('>', '&gt;')}</pre></div>")
    browser.evaluate(f"document.querySelector('main').innerHTML = {html}")
    browser.evaluate(SCRIPT.read_text(encoding="utf-8"))
    button = "document.querySelector('main button')"
    assert browser.evaluate(f"{button}.getAttribute('aria-label')") == "Copy this code"

    browser.evaluate(f"{button}.click()")
    browser.wait_for(f"{button}.textContent === 'Copied'")

    assert browser.evaluate("window.copied") == copied
    browser.wait_for(f"{button}.textContent === 'Copy'")
    assert browser.problems == []
