"""What programs log on standard error, as readers of the docs are to see it."""

from __future__ import annotations

import re
from pathlib import Path


def entries(logged: str, folder: Path, home: str, topic: str) -> list[str]:
    """Return what was logged, one text for each entry, sorted: threads log them.

    A traceback's frames are one line, ``  …``.

    Args:
        logged: What came.
        folder: Where the program is.
        home: What it is called in the docs.
        topic: The program's topic, a pattern; for it the docs say what is before its number.
    """
    logged = logged.replace(str(folder), home)
    logged = re.sub(rf"(persistent://public/default/{topic})-[0-9a-f]{{8}}\b", r"\1", logged)
    logged = re.sub(r"(http://localhost):\d+", r"\1", logged)
    logged = re.sub(r"(?:^  .*\n)+", "  …\n", logged, flags=re.MULTILINE)
    return sorted(re.split(r"\n(?=a message failed)", logged.rstrip("\n"))) if logged else []
