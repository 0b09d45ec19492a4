"""What users of `pulsar_retry.push` see."""

from __future__ import annotations

import subprocess
import sys


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
