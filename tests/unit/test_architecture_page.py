"""The picture of the layers, docs/layers.svg."""

from __future__ import annotations

import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def heights() -> dict[str, float]:
    """Return how far down each text of the picture stands."""
    picture = ET.parse(ROOT / "docs" / "layers.svg")  # noqa: S314 - our own file
    return {text.text or "": float(text.attrib["y"]) for text in picture.iter(f"{SVG}text")}


def test_it_shows_the_layers_that_are_checked():
    """In the order of import-linter's contract, those of one line side by side."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = tables["tool"]["importlinter"]["contracts"][0]
    layers = [
        [name.removeprefix("pulsar_retry.") for name in layer.split(" | ")]
        for layer in contract["layers"]
        if layer.startswith("pulsar_retry.")
    ]
    drawn = heights()

    assert all(len({drawn[name] for name in layer}) == 1 for layer in layers)
    lines = [drawn[layer[0]] for layer in layers]
    assert lines == sorted(lines)
    assert len(set(lines)) == len(lines)
