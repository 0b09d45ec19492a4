"""Passes pulsar-client's log to a Python logger; pulsar-client never calls Python for it.

If pulsar-client gets a Python logger, it takes the interpreter's lock for each line, even for lines
below the logger's level, and once more when one of its threads ends. An interpreter that is
shutting down (before Python 3.14) kills such a thread, and C++ then aborts the process. Therefore
pulsar-client writes its lines into a pipe, and a thread of this module reads them while there is a
client.

pulsar-client has one log for the whole process. The first client determines it, and its file stays
open for ever. Without a reader, a full pipe would block pulsar-client. Therefore its file becomes
another one: standard error while there is no client of this package, and a new pipe later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import uuid
from pathlib import Path

import _pulsar
import pulsar

if sys.platform == "linux":
    import fcntl

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
#: Writes the exceptions of the application's handlers and filters to standard error.
_BROKEN = logging.Handler()
#: What is written after the last line.
_LAST = f"last line {uuid.uuid4().hex}"
#: The size of the pipe in bytes: some thousand lines.
_CAPACITY = 1 << 20
#: The maximum number of seconds for reading the last lines.
_PATIENCE = 1.0


class _ClientLog:
    """The log of this process. Thread-safe."""

    def __init__(self, file: int | None = None) -> None:
        """Make it; *file* is what pulsar-client has open already."""
        self._file = file
        self._users: set[object] = set()
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        # The destructor of a client can interrupt a thread that holds the lock.
        self._lock = threading.RLock()

    def begin(self, user: object, logger: logging.Logger) -> None:
        with self._lock:
            self._users.add(user)
            if len(self._users) == 1:
                self._open(logger)

    def end(self, user: object) -> None:
        with self._lock:
            if user not in self._users:
                return
            self._users.discard(user)
            if self._users or self._pipe is None or self._file is None:
                return
            self._leave(self._file)
            (_, writer), self._pipe = self._pipe, None
            thread, self._thread = self._thread, None
            # The end of the file does not come while another process has the pipe open. A full pipe
            # must not block here, because its reader may wait for a lock of the application.
            os.set_blocking(writer, False)
            with contextlib.suppress(BlockingIOError):
                os.write(writer, f"{_LAST}\n".encode("ascii"))
            os.close(writer)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def forked(self) -> _ClientLog:
        """Return the log of a forked child, and leave the pipe to the parent. No lock is taken."""
        if self._file is not None:
            self._leave(self._file)
        for each in self._pipe or ():
            os.close(each)
        return _ClientLog(self._file)

    def _open(self, logger: logging.Logger) -> None:
        reader, writer = _pipe()
        if self._file is None:
            self._file = _opened(reader, writer, logger)
        else:
            os.dup2(writer, self._file, inheritable=False)
        if self._file is None:  # pulsar-client has another log
            os.close(reader)
            os.close(writer)
            return
        self._pipe = reader, writer
        thread = threading.Thread(
            target=_pass_on, args=(reader, logger), name="pulsar-client-log", daemon=True
        )
        thread.start()
        self._thread = thread

    @staticmethod
    def _leave(file: int) -> None:
        try:
            os.dup2(_STANDARD_ERROR, file, inheritable=False)
        except OSError:  # this process has none
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file, inheritable=False)
            os.close(nowhere)


def _pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, as large as the system allows without a privilege.

    pulsar-client makes and shuts down clients with the interpreter's lock. If the pipe is full
    then, its reader waits for this lock, and pulsar-client for the reader.
    """
    reader, writer = os.pipe()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # this user has too many
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _CAPACITY)
    return reader, writer


def _opened(reader: int, writer: int, logger: logging.Logger) -> int | None:
    """Have pulsar-client open the pipe as its log; return its file, None if it has another log.

    Lines below the present level of *logger* are not written.
    """
    least = logger.getEffectiveLevel()
    levels = [client for level, client in _LEVELS.values() if level >= least]
    level = levels[0] if levels else pulsar.LoggerLevel.Error
    configuration = _pulsar.ClientConfiguration()
    configuration.set_file_logger(level, f"{_OPEN_FILES}/{writer}")
    client = _pulsar.Client("pulsar://localhost", configuration)  # connects to nothing
    del client, configuration  # their copy is closed now, if it is not the log
    wanted = os.fstat(writer)
    for each in (int(path.name) for path in Path(_OPEN_FILES).iterdir()):
        with contextlib.suppress(OSError):  # the file of the list itself
            if each not in {reader, writer} and os.path.samestat(os.fstat(each), wanted):
                return each
    return None


def _pass_on(reader: int, logger: logging.Logger) -> None:
    """Read lines, and pass them to *logger*, until the last one."""
    # closefd=False: a forked child has this file object, too, but not the file.
    with os.fdopen(reader, encoding="utf-8", errors="replace", closefd=False) as lines:
        for line in lines:
            if (text := line.rstrip("\n")) == _LAST:
                break
            found = _LINE.fullmatch(text)
            level, text = (found[1], found[2]) if found else ("INFO", text)
            try:
                logger.log(_LEVELS[level][0], "%s", text)
            except BaseException:  # noqa: BLE001 - nobody else reads, and a full pipe blocks
                _BROKEN.handleError(logging.makeLogRecord({"msg": text}))
    os.close(reader)


_log = _ClientLog()


def begin(user: object, logger: logging.Logger | None) -> bool:
    """Pass pulsar-client's lines to *logger* until `end` is called with the same *user*.

    If others have begun, the lines go to their logger.

    Args:
        user: Anything that can be a key.
        logger: The application's logger; None: that of the name ``pulsar``.

    Returns:
        Whether the lines are passed on. On Windows, which cannot open a pipe by its number, they
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
