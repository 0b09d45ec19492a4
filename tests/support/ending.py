"""How a program ends that has used a client with a Python function in it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

_PROGRAM = """
import os, sys
import pulsar

{imports}

QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)

class Supplier:
    def __call__(self):
        return "t"

    def __del__(self):
        os.write(1, b"destroyed ")

def use():
{body}

# What waits for the interpreter's lock at the end waits until the end.
sys.setswitchinterval(1000)
use()
"""


def end_of(imports: str, body: str) -> tuple[int, str]:
    """Return the exit code of a program, and ``destroyed`` if a `Supplier` was destroyed.

    pulsar-client may destroy what it was given on a thread of its own, and an interpreter that is
    shutting down aborts the process then. Whether it does is chance; whether it might is not: it
    can destroy only what nothing else keeps.

    Args:
        imports: What the program imports.
        body: The body of its only function; ``Supplier`` and ``QUIET`` are there.
    """
    program = _PROGRAM.format(imports=imports, body=textwrap.indent(body, "    "))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout.strip()
