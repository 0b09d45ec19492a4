"""The folder of one broker, with its configuration, data and logs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Self

import attrs

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.standalone.config import Setting, format_conf

__all__ = ["Folder", "check_folder"]

_TAIL_LINES = 30
_TAIL_BYTES = 20_000
# The broker logs this when it has bound its ports. An HTTP answer alone is not enough: it could
# come from another broker that has taken the ports just before ours.
_SERVES = b"messaging service is ready"


def check_folder(data_dir: str | Path | None) -> Path | None:
    """Return the absolute path of the folder in which a user wants to keep data.

    Raises:
        ConfigError: It is not empty, and does not contain a broker's data; or nobody has such a
            home folder.
    """
    if data_dir is None:
        return None
    accepted = "a new or empty folder, or one that a standalone Pulsar used before"
    try:
        path = Path(data_dir).expanduser().absolute()
    except RuntimeError as error:  # there is no such user as in "~user"
        raise ConfigError.bad("data_dir", str(data_dir), accepted) from error
    if path.exists() and not path.is_dir():
        raise ConfigError.bad("data_dir", str(data_dir), accepted)
    if path.is_dir() and any(path.iterdir()) and not (path / "conf" / "standalone.conf").exists():
        raise ConfigError.bad("data_dir", str(data_dir), accepted)
    return path


@attrs.frozen
class Folder:
    """The paths in a broker's folder, and the files in it.

    Attributes:
        path: The folder itself.
        temporary: Whether `remove` removes it.
    """

    path: Path
    temporary: bool

    @classmethod
    def open(cls, path: Path | None) -> Self:
        """Create the folder, or complete an existing one; None creates a temporary one.

        Raises:
            StandaloneError: It cannot be created.
        """
        try:
            root = path or Path(tempfile.mkdtemp(prefix="pulsar-standalone-"))
            root.mkdir(parents=True, exist_ok=True)
            for name in ("conf", "data", "logs"):
                # The configuration holds the secret key, and Pulsar logs its configuration.
                (root / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StandaloneError(f"cannot create the data folder: {error}") from error
        return cls(root, path is None)

    @contextlib.contextmanager
    def unused(self) -> Iterator[None]:
        """Lock the folder while its files are changed, and unlock it for the guard of our own JVM.

        Raises:
            StandaloneError: A broker uses the folder.
        """
        with self.lock.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise StandaloneError(
                    f"the data folder {self.path} is in use by process {file.read().strip()}"
                ) from None
            try:
                yield
            finally:  # also releases a copy in a forked child
                fcntl.flock(file, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Remove the folder if it is a temporary one."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def secret_key(self) -> Path:
        """The key that tokens are signed with."""
        return self.path / "conf" / "secret.key"

    @property
    def lock(self) -> Path:
        """The file that is locked while a broker uses the folder."""
        return self.path / "lock"

    @property
    def log(self) -> Path:
        """The log of Pulsar."""
        return self.path / "logs" / "pulsar.log"

    @property
    def output(self) -> Path:
        """The output of the JVM itself."""
        return self.path / "logs" / "jvm.out"

    @property
    def conf(self) -> Path:
        """The configuration file."""
        return self.path / "conf" / "standalone.conf"

    def was_set(self, setting: str, value: Setting) -> bool:
        """Tell whether the last broker of this folder had a setting."""
        return format_conf({setting: value}).encode() in _read(self.conf).splitlines(keepends=True)

    def write_conf(self, settings: Mapping[str, Setting]) -> None:
        """Write the configuration, and start new logs."""
        self.conf.write_text(format_conf(settings), "utf-8")
        for log in (self.log, self.output):
            log.unlink(missing_ok=True)

    def write_arguments(
        self, options: Sequence[str], jars: Sequence[Path], program: Sequence[str]
    ) -> Path:
        """Write the JVM's argument file, which also keeps the class path out of `ps`.

        Args:
            options: The options of the JVM.
            jars: The class path.
            program: The class to run, and its arguments.
        """
        logging = self.path / "conf" / "log4j2.xml"
        logging.write_bytes((resources.files(__package__) / "log4j2.xml").read_bytes())
        arguments = [
            *options,
            f"-Dlog4j2.configurationFile={logging}",
            f"-Dpulsar.log.file={self.log}",
            *("-cp", os.pathsep.join(map(str, jars))),
            *program,
        ]
        file = self.path / "conf" / "java.args"
        file.write_text("".join(map(_quoted, arguments)), "utf-8")
        return file

    def broker_serves(self) -> bool:
        """Tell whether the broker has its ports and is ready, according to the log."""
        return _SERVES in _read(self.log)

    def tail(self) -> str:
        """Return the last lines of the JVM's output and of Pulsar's log."""
        return "\n".join(
            f"--- {log} ---\n{text}" for log in (self.output, self.log) if (text := _tail(log))
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _tail(path: Path) -> str:
    lines = _read(path)[-_TAIL_BYTES:].decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def _quoted(argument: str) -> str:
    """Quote a line of an argument file in the form that `java` needs."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"\n'
