"""Subscribers that run in separate processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.appended import whole_lines
from support.pull import workers


class Program:
    """The program of `workers`, and the attempts that it has recorded.

    Attributes:
        path: The file with the attempts.
        process: The process.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        path: Path,
        pause: float,
        *,
        backoff: str = "fixed 1s",
        redelivery: str = "letters",
    ) -> None:
        """Start the program; its handler takes *pause* seconds."""
        self.path = path
        arguments = [url, topic, str(path), str(pause), backoff, redelivery]
        self.process = subprocess.Popen([sys.executable, workers.__file__, *arguments])

    def attempts(self) -> list[bytes]:
        """Return the payloads of all attempts so far."""
        return [each.encode() for each in whole_lines(self.path)]
