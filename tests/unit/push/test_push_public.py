"""What users of `pulsar_retry.push` see."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from pulsar_retry import push


@pytest.mark.parametrize("name", push.__all__)
def test_what_is_public_is_documented(name: str) -> None:
    """Classes and their public methods; every argument is named."""
    kind = getattr(push, name)
    assert kind.__doc__
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for own, member in vars(kind).items():
        if own.startswith("_") or not inspect.isfunction(member):
            continue
        assert member.__doc__, own
        kinds = {each.kind for each in inspect.signature(member).parameters.values()}
        assert not kinds & variable, own


def test_without_the_extra() -> None:
    """The error says what to install, on the command line too."""
    program = """
import sys
sys.modules["h11"] = None
from pulsar_retry.cli import main
usual = ["--topic", "t", "--subscription", "s", "--endpoint", "http://localhost:1/"]
sys.exit(main(["push", "serve", *usual]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert 1 == done.returncode
    assert 'pip install "pulsar-retry[push]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_the_rest_can_be_looked_at() -> None:
    """By help() and editors, too; who needs the package reads what to install."""
    program = """
import pydoc, sys
sys.modules["h11"] = None
import pulsar_retry as pr
assert "Exponential" in pydoc.render_doc(pr)
assert not hasattr(pr, "push")
for use in ("pr.push.PushDispatcher", "from pulsar_retry import push", "import pulsar_retry.push"):
    try:
        exec(use)
    except (AttributeError, ImportError) as error:
        print(type(error).__name__, 'pip install "pulsar-retry[push]"' in str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == [
        "AttributeError True",
        "ModuleNotFoundError True",
        "ModuleNotFoundError True",
        "",
    ]
