"""What pulsar-client logs, to a Python logger, without pulsar-client ever calling Python.

Given a Python logger, pulsar-client takes the interpreter's lock for each line, also for those
below the logger's level, and once more when a thread of its own ends. An interpreter that is
shutting down (before Python 3.14) kills such a thread, and C++ aborts the process. So it writes
lines into a pipe instead, and a thread of ours reads them.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
from typing import IO

import pulsar

_LINE = re.compile(r"\S+ \S+ (DEBUG|INFO|WARN|ERROR) +\[\w+\] \S+ \| (.*)", re.DOTALL)
_LEVELS = {
    "DEBUG": (logging.DEBUG, pulsar.LoggerLevel.Debug),
    "INFO": (logging.INFO, pulsar.LoggerLevel.Info),
    "WARN": (logging.WARNING, pulsar.LoggerLevel.Warn),
    "ERROR": (logging.ERROR, pulsar.LoggerLevel.Error),
}
#: Seconds in which the last lines are read at exit.
_PATIENCE = 1.0

_lock = threading.Lock()
_pipes: dict[logging.Logger, _Pipe] = {}


class _Pipe:
    """Hands lines on to a logger, as long as the process lives."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        reader, self.writer = os.pipe()
        # Left open to the very end, for pulsar-client may still write: a warning would be noise.
        self._lines: IO[str] = os.fdopen(reader, encoding="utf-8", errors="replace", closefd=False)
        self.thread = threading.Thread(target=self._run, name="pulsar-client-log", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for line in self._lines:
            if line == "\n":  # written at exit alone
                return
            found = _LINE.fullmatch(line.rstrip("\n"))
            level, text = (found[1], found[2]) if found else ("INFO", line.rstrip("\n"))
            self._logger.log(_LEVELS[level][0], "%s", text)

    def drain(self) -> None:
        """Wait until what is in the pipe has been logged."""
        os.write(self.writer, b"\n")
        self.thread.join(_PATIENCE)


def logger_of(logger: logging.Logger) -> pulsar.FileLogger:
    """Return what pulsar-client takes, which logs to *logger*. Thread-safe.

    What is below the level that the logger has now is not written.
    """
    least = logger.getEffectiveLevel()
    levels = [client for level, client in _LEVELS.values() if level >= least]
    with _lock:
        pipe = _pipes.get(logger)
        if pipe is None:
            pipe = _pipes[logger] = _Pipe(logger)
    level = levels[0] if levels else pulsar.LoggerLevel.Error
    return pulsar.FileLogger(level, f"/dev/fd/{pipe.writer}")


@atexit.register
def _drain() -> None:
    # Functions registered at exit run in reverse: whoever closes clients there imports this first.
    for pipe in _pipes.values():
        pipe.drain()


def _forget_inherited() -> None:
    """Leave the parent's pipes alone: they lead to the parent's logger."""
    global _lock  # noqa: PLW0603 - a thread of the parent may have held it
    _lock = threading.Lock()
    _pipes.clear()


os.register_at_fork(after_in_child=_forget_inherited)
