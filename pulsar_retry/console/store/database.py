"""The file of the console: an SQLite database in WAL mode, with a version of its tables."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import sys
import threading
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from pulsar_retry.errors import ConfigError

#: The name that keeps everything in memory, until the process ends.
MEMORY = ":memory:"

#: The version of the tables in a file; an empty file has 0.
_VERSION = 1
_TABLES = """
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, topic INTEGER NOT NULL, reason TEXT NOT NULL, error TEXT NOT NULL,
    fingerprint TEXT NOT NULL, message TEXT NOT NULL, first_seen REAL NOT NULL,
    UNIQUE (topic, reason, error, fingerprint)
);
CREATE TABLE arrivals (
    grp INTEGER NOT NULL, bucket INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (grp, bucket)
) WITHOUT ROWID;
CREATE INDEX arrivals_by_time ON arrivals (bucket, grp, count);
CREATE TABLE letters (
    topic INTEGER NOT NULL, part INTEGER NOT NULL, ledger INTEGER NOT NULL,
    entry INTEGER NOT NULL, batch INTEGER NOT NULL, grp INTEGER NOT NULL,
    at REAL NOT NULL, attempt INTEGER, redrives INTEGER NOT NULL, key TEXT, preview TEXT,
    PRIMARY KEY (topic, part, ledger, entry, batch)
) WITHOUT ROWID;
CREATE INDEX letters_by_group ON letters (topic, grp, at);
CREATE TABLE followed (
    partition TEXT PRIMARY KEY, ledger INTEGER NOT NULL, entry INTEGER NOT NULL,
    is_whole INTEGER NOT NULL, done INTEGER NOT NULL, total INTEGER NOT NULL
);
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, began REAL NOT NULL, verb TEXT NOT NULL, source TEXT NOT NULL,
    dry_run INTEGER NOT NULL, facts TEXT NOT NULL
);
CREATE TABLE actions (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, by TEXT NOT NULL, verb TEXT NOT NULL,
    target TEXT NOT NULL, detail TEXT NOT NULL
);
"""


def default_path(service_url: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file for a cluster in the user's folder for state.

    Raises:
        ConfigError: the user has no folder.
    """
    if sys.platform == "win32":
        base = (
            Path(environment.get("LOCALAPPDATA", "")) if environment.get("LOCALAPPDATA") else None
        )
    else:
        configured = Path(environment.get("XDG_STATE_HOME", ""))
        # According to the XDG specification, a relative path is ignored.
        base = configured if configured.is_absolute() else None
    try:
        base = base or Path.home() / ".local" / "state"
    except RuntimeError as error:  # a container without a name for its user id
        raise ConfigError(f"store: expected a file, because there is no home: {error}") from None
    host = urllib.parse.urlsplit(service_url).netloc.rpartition("@")[2]
    return base / "pulsar-retry" / f"console-{re.sub('[^A-Za-z0-9.-]+', '-', host)[:100]}.db"


class Database:
    """Connections to one file, which only this process uses. Thread-safe.

    Readers do not wait for the writer. Writers wait for each other.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the file, or create it.

        Args:
            path: The file; ``:memory:`` keeps nothing.

        Raises:
            ConfigError: it cannot be opened, another process uses it, or a later release has
                written it.
        """
        self.path = str(path)
        self._in_memory = self.path == MEMORY
        self._writing = threading.RLock()
        self._idle: deque[sqlite3.Connection] = deque()
        self._open: list[sqlite3.Connection] = []
        try:
            if not self._in_memory:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                # The file has texts of errors and keys of messages: it is for its owner only.
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
                self._lock = sqlite3.connect(f"{path}.lock", timeout=0, check_same_thread=False)
                self._open.append(self._lock)
                self._lock.execute("BEGIN EXCLUSIVE")
            self._writer = self._connect()
            if not self._in_memory:
                self._writer.execute("PRAGMA journal_mode = WAL")
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            self.close()
            why = f"{type(error).__name__}: {error}"
            if "locked" in str(error):
                why = "another console uses it"
            raise ConfigError.bad(
                "store", self.path, f"a file that can be written ({why})"
            ) from None
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        with self._writing:
            for each in self._open:
                with contextlib.suppress(sqlite3.Error):
                    each.close()
            self._open.clear()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection to read from."""
        if self._in_memory:
            with self._writing:
                yield self._writer
            return
        # Not one for each thread: a server's threads come and go, and would leave theirs open.
        try:
            found = self._idle.pop()
        except IndexError:
            found = self._connect()
        try:
            yield found
        finally:
            self._idle.append(found)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection within a transaction, which is rolled back if the body raises."""
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # SQLite may have rolled back, for a full disk
                    self._writer.execute("ROLLBACK")
                raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=10, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = NORMAL")
        with self._writing:
            self._open.append(connection)
        return connection

    def _prepare(self) -> None:
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise ConfigError.bad(
                "store",
                self.path,
                f"a file of version {_VERSION}; this one has version {version}, of a later release",
            )
        if not version:
            self._writer.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;"
            )
