"""Passes pulsar-client's log to a Python logger; pulsar-client never calls Python for it.

If pulsar-client gets a Python logger, it takes the interpreter's lock for each line, even for lines
below the logger's level, and once more when one of its threads ends. An interpreter that is
shutting down (before Python 3.14) kills such a thread, and C++ then aborts the process. Therefore
pulsar-client writes its lines into a file in memory, and a thread of this module reads them while
there is a client. It is no pipe, because pulsar-client writes some lines with the interpreter's
lock: if a pipe were full then, pulsar-client would wait for its reader, and the reader for the
lock.

pulsar-client has one log for the whole process. The first client determines it, and its file stays
open for ever. So its file becomes standard error while there is no client of this package.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import tempfile
import threading
from pathlib import Path

import _pulsar
import pulsar

from pulsar_retry.runtime.log import BROKEN

_LINE = re.compile(r"\S+ \S+ (DEBUG|INFO|WARN|ERROR) +\[\w+\] \S+ \| (.*)", re.DOTALL)
_LEVELS = {
    "DEBUG": (logging.DEBUG, pulsar.LoggerLevel.Debug),
    "INFO": (logging.INFO, pulsar.LoggerLevel.Info),
    "WARN": (logging.WARNING, pulsar.LoggerLevel.Warn),
    "ERROR": (logging.ERROR, pulsar.LoggerLevel.Error),
}
#: Where an open file has its number as its name.
_OPEN_FILES = "/dev/fd"
_STANDARD_ERROR = 2
#: Seconds between two looks at the file: nothing says that a line was written.
_EVERY = 0.1
#: Of Linux's fallocate: the flags that free a part of a file and keep its size.
_PUNCH_HOLE = 0x03
#: If more bytes than this wait, because the application's logger is slow, they are dropped.
_MOST_WAITING = 16 << 20
_CHUNK = 1 << 16
#: The maximum number of seconds for reading the last lines.
_PATIENCE = 1.0


class _ClientLog:
    """The log of this process. Thread-safe."""

    def __init__(self, file: int | None = None) -> None:
        """Make it; *file* is what pulsar-client has open already."""
        self._file = file
        self._users: set[object] = set()
        self._reader: _Reader | None = None
        # The destructor of a client can interrupt a thread that holds the lock.
        self._lock = threading.RLock()

    def begin(self, user: object, logger: logging.Logger) -> None:
        with self._lock:
            self._users.add(user)
            if len(self._users) > 1:
                return
            store = _new_file()
            if self._file is None:
                self._file = _opened(store, logger)
            else:
                os.dup2(store, self._file, inheritable=False)
            if self._file is None:  # pulsar-client has another log
                os.close(store)
            else:
                self._reader = _Reader(store, logger)

    def end(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if self._users or self._reader is None:
                return
            self._leave()
            reader, self._reader = self._reader, None
            reader.ended.set()
        if reader is not threading.current_thread():
            reader.join(_PATIENCE)

    def forked(self) -> _ClientLog:
        """Return the log of a forked child, and leave the file to the parent. No lock is taken."""
        self._leave()
        if self._reader is not None:
            os.close(self._reader.file)
        return _ClientLog(self._file)

    def _leave(self) -> None:
        """Have lines written to standard error."""
        if self._file is None:
            return
        try:
            os.dup2(_STANDARD_ERROR, self._file, inheritable=False)
        except OSError:  # this process has none
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file, inheritable=False)
            os.close(nowhere)


class _Reader(threading.Thread):
    """Passes the lines that are appended to a file to a logger, until *ended* is set."""

    def __init__(self, file: int, logger: logging.Logger) -> None:
        super().__init__(name="pulsar-client-log", daemon=True)
        self.file, self.ended = file, threading.Event()
        self._logger = logger
        self.start()

    def run(self) -> None:
        at, rest, is_over = 0, b"", False
        while not is_over:
            is_over = self.ended.wait(_EVERY)
            start, end = at, os.fstat(self.file).st_size
            dropped = 0
            drops = end - at > _MOST_WAITING
            while at < end:
                data = os.pread(self.file, min(_CHUNK, end - at), at)
                at += len(data)
                *lines, rest = (rest + data).split(b"\n")
                if drops:
                    dropped += len(lines)
                else:
                    for line in lines:
                        self._log(line.decode("utf-8", "replace"))
            if dropped:
                self._log(f"- - WARN  [0] - | {dropped} lines were dropped: the logger is too slow")
            if at > start:
                _free(self.file, at)
        os.close(self.file)

    def _log(self, text: str) -> None:
        found = _LINE.fullmatch(text)
        level, text = (found[1], found[2]) if found else ("INFO", text)
        try:
            self._logger.log(_LEVELS[level][0], "%s", text)
        except BaseException:  # noqa: BLE001 - nobody else reads
            BROKEN.handleError(logging.makeLogRecord({"msg": text}))


def _new_file() -> int:
    """Return a file without a name, in memory if the system has that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pulsar-client-log")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _free(file: int, end: int) -> None:
    """Free the memory of a file up to *end*; its size stays. Without Linux, nothing is freed."""
    if hasattr(os, "memfd_create"):
        sizes = ctypes.c_longlong(0), ctypes.c_longlong(end)
        ctypes.CDLL(None).fallocate(file, _PUNCH_HOLE, *sizes)


def _opened(store: int, logger: logging.Logger) -> int | None:
    """Have pulsar-client open a file as its log; return its number, None if it has another log.

    Lines below the present level of *logger* are not written.
    """
    least = logger.getEffectiveLevel()
    levels = [client for level, client in _LEVELS.values() if level >= least]
    level = levels[0] if levels else pulsar.LoggerLevel.Error
    configuration = _pulsar.ClientConfiguration()
    configuration.set_file_logger(level, f"{_OPEN_FILES}/{store}")
    client = _pulsar.Client("pulsar://localhost", configuration)  # connects to nothing
    del client, configuration  # their copy is closed now, if it is not the log
    wanted = os.fstat(store)
    for each in (int(path.name) for path in Path(_OPEN_FILES).iterdir()):
        with contextlib.suppress(OSError):  # the file of the list itself
            if each != store and os.path.samestat(os.fstat(each), wanted):
                return each
    return None


_log = _ClientLog()


def begin(user: object, logger: logging.Logger | None) -> bool:
    """Pass pulsar-client's lines to *logger* until `end` is called with the same *user*.

    If others have begun, the lines go to their logger.

    Args:
        user: Anything that can be a key.
        logger: The application's logger; None: that of the name ``pulsar``.

    Returns:
        Whether the lines are passed on. On Windows, which cannot open a file by its number, they
        are not: there, pulsar-client itself needs *logger*, or else it writes to the console.
    """
    if not Path(_OPEN_FILES).exists():
        return False
    _log.begin(user, logger or logging.getLogger("pulsar"))
    return True


def end(user: object) -> None:
    """End what *user* has begun; the last user waits until all lines are passed on."""
    _log.end(user)


def _forget_inherited() -> None:
    global _log  # noqa: PLW0603 - a thread of the parent may hold its lock
    _log = _log.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_inherited)
