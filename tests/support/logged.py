"""The log entries of programs on standard error, as the docs show them."""

from __future__ import annotations

import re
from pathlib import Path


def entries(logged: str, folder: Path, home: str, topic: str) -> list[str]:
    """Return the log entries, sorted, because several threads log.

    The frames of a traceback become one line, ``  …``.

    Args:
        logged: The text on standard error.
        folder: The program's folder.
        home: The name of this folder in the docs.
        topic: A pattern for the program's topic, which has a random suffix; the docs leave the
            suffix out.
    """
    logged = logged.replace(str(folder), home)
    logged = re.sub(rf"(persistent://public/default/{topic})-[0-9a-f]{{8}}\b", r"\1", logged)
    logged = re.sub(r"(http://localhost):\d+", r"\1", logged)
    logged = re.sub(r"(?:^  .*\n)+", "  …\n", logged, flags=re.MULTILINE)
    logged = re.sub(r"(has closed after) \d+ s", r"\1 … s", logged)
    return (
        sorted(re.split(r"\n(?=a message failed|the breaker of)", logged.rstrip("\n")))
        if logged
        else []
    )
