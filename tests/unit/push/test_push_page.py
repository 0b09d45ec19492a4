"""The plots of the page about push."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


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
