"""Where the records of a ledger are kept: a folder of this machine, or of a Hadoop file system.

A file appears under its name only when it is complete: it is written under another name, which
starts with a dot and which Spark does not read, and renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import attrs

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry_spark.errors import PulsarFailuresError, first_line
from pulsar_retry_spark.session import hadoop_path


class RecordStore(Protocol):
    """A folder. Names are relative to it, with slashes. Each method raises what its system does."""

    def names(self, folder: str) -> list[str]:
        """Return the names in *folder*, sorted, without its path; none if there is no folder."""
        ...

    def read(self, name: str) -> str:
        """Return the content of a file."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file that does not exist, with the folders it needs."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        ...


@attrs.frozen
class LocalStore:
    """A folder of this machine, or one that is mounted on it."""

    root: Path

    def names(self, folder: str) -> list[str]:
        """Return the names in *folder*."""
        path = self.root / folder
        return sorted(each.name for each in path.iterdir()) if path.is_dir() else []

    def read(self, name: str) -> str:
        """Return the content of a file."""
        return (self.root / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        """Write a file, and return when it is on the disk."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.tmp")
        with hidden.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.root / name).unlink(missing_ok=True)


class HadoopStore:
    """A folder of any file system that Spark's Hadoop client knows, such as `s3a:` and `hdfs:`."""

    def __init__(self, jvm: Any, files: Any, root: str) -> None:
        """Use *files*, a Java `FileSystem`; *root* is the folder as it names it."""
        self._jvm = jvm
        self._files = files
        self._root = root

    def names(self, folder: str) -> list[str]:
        """Return the names in *folder*."""
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        return sorted(each.getPath().getName() for each in self._files.listStatus(path))

    def read(self, name: str) -> str:
        """Return the content of a file."""
        stream = self._files.open(self._path(name))
        try:
            content: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
        finally:
            stream.close()
        return bytes(content).decode()

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        folder, _, last = name.rpartition("/")
        path, hidden = self._path(name), self._path(f"{folder}/.{last}.tmp")
        stream = self._files.create(hidden, True)  # noqa: FBT003 - Java's: it replaces a file
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not self._files.rename(hidden, path):
            raise OSError(f"{hidden.toString()} was not renamed to {path.toString()}")

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._files.delete(self._path(name), False)  # noqa: FBT003 - Java's: not a folder

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}" if name else self._root)


def check_path(path: Any) -> None:
    """Raise a `ConfigError` unless *path* can be that of a ledger."""
    if not isinstance(path, str) or not path.strip():
        raise ConfigError.bad("ledger", path, "the path or the URL of a folder")


def store_of(path: str, spark: Any) -> RecordStore:
    """Return the store for *path*, as Spark would understand it.

    Args:
        path: A path or a URL.
        spark: The Spark session. Without one, and on Spark Connect, there is no Hadoop client to
            ask, and a path is one of this machine.

    Raises:
        ConfigError: *path* is not on this machine, and there is no Hadoop client.
    """
    check_path(path)
    if (found := hadoop_path(spark, path)) is not None:
        hadoop, files = found
        whole = files.makeQualified(hadoop)
        if whole.toUri().getScheme() != "file":
            return HadoopStore(spark._jvm, files, whole.toString())  # noqa: SLF001 - its classes
        return LocalStore(Path(whole.toUri().getPath()))
    url = urlsplit(path)
    if url.scheme == "file" and url.netloc in {"", "localhost"}:
        # Hadoop, and so Spark, takes `%20`, `?` and `#` for parts of names.
        return LocalStore(Path(path.partition(":")[2].removeprefix(f"//{url.netloc}")))
    if not Path(path).is_absolute():
        accepted = (
            "an absolute path or a file: URL, because only a classic Spark session can reach other "
            "file systems: on Spark Connect, and without a session, mount the folder"
        )
        raise ConfigError.bad("ledger", path, accepted)
    return LocalStore(Path(path))


@contextmanager
def ledger_errors(what: str) -> Iterator[None]:
    """Raise the errors of a file system as `LEDGER_ERROR`.

    They have no common type: the JVM raises some, and the operating system others.
    """
    try:
        yield
    except PulsarRetryError:
        raise
    except Exception as error:
        raise PulsarFailuresError("LEDGER_ERROR", f"{what}: {first_line(error)}") from error
