"""The rules of the house that a machine can check."""

from __future__ import annotations

import configparser
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "spark"


def test_setup_names_every_package() -> None:
    """A package that setup.cfg forgets is missing from the wheel."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    roots = (ROOT / "pulsar_retry", *(path.parent for path in SPARK.glob("*/__init__.py")))
    packages = {
        ".".join(module.parent.relative_to(root.parent).parts)
        for root in roots
        for module in root.rglob("__init__.py")
    }
    for stub in (ROOT / "typings").rglob("__init__.pyi"):
        name, *rest = stub.parent.relative_to(ROOT / "typings").parts
        packages.add(".".join((f"{name}-stubs", *rest)))
    assert packages == set(setup["options"]["packages"].split())
