"""Runs programs that have passed a Python function to a client, and returns how they ended."""

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

    pulsar-client may destroy a Python object on a thread of its own; if the interpreter is shutting
    down then, it aborts the process. Whether that happens is chance. Whether it can happen is not:
    pulsar-client can destroy an object only if nothing else holds a reference to it.

    Args:
        imports: The imports of the program.
        body: The body of its only function, which can use ``Supplier`` and ``QUIET``.
    """
    program = _PROGRAM.format(imports=imports, body=textwrap.indent(body, "    "))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout.strip()
