"""Passes pulsar-client's log to a Python logger; pulsar-client never calls Python for it.

If pulsar-client gets a Python logger, it takes the interpreter's lock for each line, even for lines
below the logger's level, and once more when one of its threads ends. An interpreter that is
shutting down (before Python 3.14) kills such a thread, and C++ then aborts the process. Therefore
pulsar-client writes its lines into a pipe, and a thread of this module reads them.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
from pathlib import Path
from typing import IO

import pulsar

_LINE = re.compile(r"\S+ \S+ (DEBUG|INFO|WARN|ERROR) +\[\w+\] \S+ \| (.*)", re.DOTALL)
_LEVELS = {
    "DEBUG": (logging.DEBUG, pulsar.LoggerLevel.Debug),
    "INFO": (logging.INFO, pulsar.LoggerLevel.Info),
    "WARN": (logging.WARNING, pulsar.LoggerLevel.Warn),
    "ERROR": (logging.ERROR, pulsar.LoggerLevel.Error),
}
#: Where an open file has its number as its name.
_OPEN_FILES = "/dev/fd"
#: The maximum number of seconds for reading the last lines at exit.
_PATIENCE = 1.0

_lock = threading.Lock()
_pipes: dict[logging.Logger, _Pipe] = {}


class _Pipe:
    """Passes lines to a logger until the process ends."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        reader, self.writer = os.pipe()
        # The reader stays open until the process ends, because pulsar-client may still write.
        # closefd=False avoids a ResourceWarning.
        self._lines: IO[str] = os.fdopen(reader, encoding="utf-8", errors="replace", closefd=False)
        self.thread = threading.Thread(target=self._run, name="pulsar-client-log", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for line in self._lines:
            if line == "\n":  # only written at exit
                return
            found = _LINE.fullmatch(line.rstrip("\n"))
            level, text = (found[1], found[2]) if found else ("INFO", line.rstrip("\n"))
            self._logger.log(_LEVELS[level][0], "%s", text)

    def drain(self) -> None:
        """Wait until everything in the pipe has been logged."""
        os.write(self.writer, b"\n")
        self.thread.join(_PATIENCE)


def logger_of(logger: logging.Logger | None) -> pulsar.FileLogger | logging.Logger | None:
    """Return a logger for pulsar-client that passes its lines to *logger*. Thread-safe.

    Lines below the present level of *logger* are not written.

    Args:
        logger: The application's logger; None: that of the name ``pulsar``.

    Returns:
        The logger. On Windows, which cannot open a pipe by its number, *logger* itself: there,
        pulsar-client writes to the console if the application has given it no logger.
    """
    if not Path(_OPEN_FILES).exists():
        return logger
    logger = logger or logging.getLogger("pulsar")
    least = logger.getEffectiveLevel()
    levels = [client for level, client in _LEVELS.values() if level >= least]
    with _lock:
        pipe = _pipes.get(logger)
        if pipe is None:
            pipe = _pipes[logger] = _Pipe(logger)
    level = levels[0] if levels else pulsar.LoggerLevel.Error
    return pulsar.FileLogger(level, f"{_OPEN_FILES}/{pipe.writer}")


@atexit.register
def _drain() -> None:
    # Functions registered at exit run in reverse. Modules that close clients import this one first.
    for pipe in _pipes.values():
        pipe.drain()


def _forget_inherited() -> None:
    """Forget the parent's pipes in a forked child, because the parent reads them."""
    global _lock  # noqa: PLW0603 - a thread of the parent may hold the old one
    _lock = threading.Lock()
    _pipes.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_inherited)
