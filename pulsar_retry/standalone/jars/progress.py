"""Shows the progress of a download: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["Bar", "Lines", "Progress", "Silent", "progress_on"]

_MEGABYTE = 1_000_000


class Progress(Protocol):
    """Receives the progress of a download. `advance` is called from several threads at once."""

    def start(self, files: int, size: int) -> None:
        """Begin: *files* are to be downloaded, *size* bytes in total."""

    def advance(self, amount: int) -> None:
        """Add *amount* bytes; it is negative if a file has to start again."""

    def finish(self) -> None:
        """End, with or without success."""


class Silent:
    """Shows nothing."""

    def start(self, files: int, size: int) -> None:
        """Show nothing."""

    def advance(self, amount: int) -> None:
        """Show nothing."""

    def finish(self) -> None:
        """Show nothing."""


class Lines:
    """A plain line for every tenth of the download: for logs, and for terminals without rich."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._size = self._position = self._tenths = 0

    def start(self, files: int, size: int) -> None:
        """Print how much will be downloaded."""
        self._size, self._position, self._tenths = size, 0, 0
        self._say(f"downloading Pulsar: {files} files, {size / _MEGABYTE:.0f} MB")

    def advance(self, amount: int) -> None:
        """Print a line when another tenth is complete."""
        with self._lock:
            self._position += amount
            tenths = self._position * 10 // self._size
            if tenths > self._tenths:
                self._tenths = tenths
                done, size = self._position / _MEGABYTE, self._size / _MEGABYTE
                self._say(f"downloading Pulsar: {tenths}0 % ({done:.0f} of {size:.0f} MB)")

    def finish(self) -> None:
        """Do nothing: the last tenth has had its line."""

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Bar:
    """A rich progress bar with size, speed and remaining time."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    def start(self, files: int, size: int) -> None:
        """Show the bar."""
        self._bar.start()
        self._task = self._bar.add_task(f"downloading Pulsar ({files} files)", total=size)

    def advance(self, amount: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.advance(self._task, amount)

    def finish(self) -> None:
        """Leave the bar as it is and end its line."""
        self._bar.stop()


def progress_on(stream: TextIO | None = None) -> Progress:
    """Return the kind for *stream* (default: standard error): a bar on a terminal, else lines."""
    out = stream or sys.stderr
    if out.isatty():
        try:
            return Bar(_rich_bar(out))
        except ImportError:
            pass  # rich comes with the extra "cli"; lines work without it
    return Lines(out)


def _rich_bar(stream: TextIO) -> RichProgress:
    from rich import progress  # noqa: PLC0415 - optional
    from rich.console import Console  # noqa: PLC0415

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=Console(file=stream))
