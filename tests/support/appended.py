"""Reading files to which other processes append lines."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that have been written to their end; none if there is no file.

    A file system shows the beginning of a line before its end, also if one system call writes both:
    it writes page by page.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text.rpartition("\n")[0].splitlines()
