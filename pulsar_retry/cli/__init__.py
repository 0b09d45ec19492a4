"""The `pulsar-retry` command.

Each public module in this package is a verb: the module has the verb's name, and its `command` is a
click command or group. A verb is imported only when it is used, so that a slow import in one verb
does not delay the others.

Exit codes: 0 ok, 1 the job failed, 2 wrong usage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: The arguments after the command's name. None means those of this process.
    """
    began = time.monotonic()
    try:
        from pulsar_retry.cli._common.root import run  # click is optional
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print(
            'error: the command line needs some packages: pip install "pulsar-retry[cli]"',
            file=sys.stderr,
        )
        return 1
    return run(arguments, began)
