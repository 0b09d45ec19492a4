"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import configparser
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import pulsar_retry

ROOT = Path(__file__).parents[2]
PACKAGE = Path(pulsar_retry.__file__).parent
SPARK = ROOT / "spark"
MODULES = sorted(PACKAGE.rglob("*.py")) + sorted(SPARK.rglob("*.py"))

#: Small enough to read in one sitting.
MAX_LINES = 500

#: Few enough to be seen at a glance.
MAX_MODULES = 15

#: `pr.Client` derives from the consumer's client; a policy's action and what is read of a letter;
#: the report of a subscription and that of a Spark job.
NAMED_TWICE = {"Client", "DeadLetter", "Report"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_modules_can_be_read_in_one_sitting(module: Path) -> None:
    """Whatever grows beyond that is two things."""
    assert len(module.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_folders_can_be_seen_at_a_glance() -> None:
    """Whatever grows beyond that is several folders."""
    crowded = {
        folder: count
        for folder, count in Counter(module.parent for module in MODULES).items()
        if count > MAX_MODULES
    }
    assert not crowded


def test_each_public_class_has_a_name_of_its_own() -> None:
    """But those of asyncio, which are named as what they await, and two that are API."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        if "asyncio" not in module.parts:
            for node in ast.parse(module.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(module.name)
    assert NAMED_TWICE == {name for name, modules in homes.items() if len(modules) > 1}


def test_the_package_is_typed() -> None:
    """PEP 561: without the marker, nobody's type checker reads our hints."""
    assert (PACKAGE / "py.typed").is_file()


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


def test_imports_point_one_way() -> None:
    """The contracts of pyproject.toml, by import-linter."""
    lint = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if lint is None:
        pytest.skip("import-linter is not installed here")
    done = subprocess.run(
        [lint, "--no-cache"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env=os.environ
        | {
            "PYTHONIOENCODING": "utf-8",
            "PYTHONPATH": os.pathsep.join((str(PACKAGE.parent), str(SPARK))),
        },
        check=False,
    )
    assert 0 == done.returncode, done.stdout
