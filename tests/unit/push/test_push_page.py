"""The page about push, and its plots."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def test_every_test_that_it_names_exists() -> None:
    """A promise without a test would be none."""
    page = (ROOT / "docs" / "push.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    assert len(named) > 40
    assert set() == {name for name in named if f"def {name}(" not in sources}


def plots() -> Any:
    """Import the script that draws."""
    spec = importlib.util.spec_from_file_location("plot_push", ROOT / "tools" / "plot_push.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["push-window.svg", "push-backoff.svg"])
def test_plots_are_in_step(name: str) -> None:
    """They show what the code does now: run tools/plot_push.py."""
    drawn = (ROOT / "docs" / name).read_text(encoding="utf-8")
    ET.fromstring(drawn)  # noqa: S314 - our own file
    assert plots().PLOTS[name]() == drawn
