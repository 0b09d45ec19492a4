"""Passes pulsar-client's log to a Python logger; pulsar-client never calls Python for it.

If pulsar-client gets a Python logger, it takes the interpreter's lock for each line, even for lines
below the logger's level, and once more when one of its threads ends. An interpreter that is
shutting down (before Python 3.14) kills such a thread, and C++ then aborts the process. Therefore
pulsar-client writes its lines into a file in memory, and a thread of this module reads them while
there is a client. It is no pipe, because pulsar-client writes some lines with the interpreter's
lock: if a pipe were full then, pulsar-client would wait for its reader, and the reader for the
lock.

pulsar-client has one log for the whole process. The first client determines it, and its file stays
open for ever. So its file becomes another one when much was written, and standard error while there
is no client of this package.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import threading
from pathlib import Path

import _pulsar
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
_STANDARD_ERROR = 2
#: Writes the exceptions of the application's handlers and filters to standard error.
_BROKEN = logging.Handler()
#: Seconds between two looks at the file: nothing says that a line was written.
_EVERY = 0.1
#: After so many bytes, lines go to a new file.
_SIZE = 1 << 20
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
        self._store: int | None = None
        self._ended = threading.Event()
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
            if self._users or self._store is None or self._file is None:
                return
            self._leave(self._file)
            self._store = None
            self._ended.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def forked(self) -> _ClientLog:
        """Return the log of a forked child, and leave the file to the parent. No lock is taken."""
        if self._file is not None:
            self._leave(self._file)
        if self._store is not None:
            os.close(self._store)
        return _ClientLog(self._file)

    def _open(self, logger: logging.Logger) -> None:
        store = _new_file()
        if self._file is None:
            self._file = _opened(store, logger)
        else:
            os.dup2(store, self._file, inheritable=False)
        if self._file is None:  # pulsar-client has another log
            os.close(store)
            return
        self._store, self._ended = store, threading.Event()
        self._thread = threading.Thread(
            target=self._pass_on,
            args=(_Lines(store, logger), self._ended),
            name="pulsar-client-log",
            daemon=True,
        )
        self._thread.start()

    def _pass_on(self, lines: _Lines, ended: threading.Event) -> None:
        is_over = False
        while not is_over:
            is_over = ended.wait(_EVERY)
            lines.read()
            if lines.at > _SIZE and (fresh := self._renewed(ended)) is not None:
                ended.wait(_EVERY)  # a line may be on its way into the previous file
                lines.read()
                lines.turn_to(fresh)
        os.close(lines.file)

    def _renewed(self, ended: threading.Event) -> int | None:
        """Have lines written to a new file, and return it; None if the log has ended."""
        with self._lock:
            if ended.is_set() or self._file is None:
                return None
            self._store = _new_file()
            os.dup2(self._store, self._file, inheritable=False)
            return self._store

    @staticmethod
    def _leave(file: int) -> None:
        try:
            os.dup2(_STANDARD_ERROR, file, inheritable=False)
        except OSError:  # this process has none
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file, inheritable=False)
            os.close(nowhere)


class _Lines:
    """Passes lines of a file, to which they are appended, to a logger. For one thread.

    Attributes:
        file: The file.
        at: How much of it was read.
    """

    def __init__(self, file: int, logger: logging.Logger) -> None:
        self.file, self.at = file, 0
        self._logger = logger
        self._rest = b""

    def read(self) -> None:
        """Pass on what was appended. If that is too much, only count it."""
        end = os.fstat(self.file).st_size
        drops, dropped = end - self.at > _MOST_WAITING, 0
        while self.at < end:
            data = os.pread(self.file, min(_CHUNK, end - self.at), self.at)
            self.at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            if drops:
                dropped += len(lines)
                continue
            for line in lines:
                self._log(line.decode("utf-8", "replace"))
        if dropped:
            self._log(f"- - WARN  [0] - | {dropped} lines were dropped: the logger is too slow")

    def turn_to(self, file: int) -> None:
        """Go on with another file; a line may begin in this one, and end in the other."""
        os.close(self.file)
        self.file, self.at = file, 0

    def _log(self, text: str) -> None:
        found = _LINE.fullmatch(text)
        level, text = (found[1], found[2]) if found else ("INFO", text)
        try:
            self._logger.log(_LEVELS[level][0], "%s", text)
        except BaseException:  # noqa: BLE001 - nobody else reads
            _BROKEN.handleError(logging.makeLogRecord({"msg": text}))


def _new_file() -> int:
    """Return a file without a name, in memory if the system has that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pulsar-client-log")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


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
