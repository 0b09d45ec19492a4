"""The jar cache of each user: finds missing jars, downloads them in parallel, and checks them.

The cache is `$XDG_CACHE_HOME/pulsar-retry/maven` (default `~/.cache/…`), with the layout of a Maven
repository. A jar is written to `<name>.part` with a file lock, and renamed when its SHA-256 is
right. So any number of processes may download at the same time, and none of them ever sees an
incomplete jar. A `.part` file of a killed process is resumed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.standalone.jars.fetch import CancelledError, Download, fetch
from pulsar_retry.standalone.jars.lock import Jar
from pulsar_retry.standalone.jars.progress import Progress, Silent

__all__ = ["MAVEN_CENTRAL", "MIRROR_VARIABLE", "JarStore", "default_cache"]

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
MIRROR_VARIABLE = "PULSAR_RETRY_MAVEN_MIRROR"

_WORKERS = 8
_LOCK_POLL = 0.1  # seconds between two tries to get the lock of another process


def default_cache() -> Path:
    """Return this package's cache folder for this user; it may not exist yet."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # According to the XDG specification, a relative path is ignored.
    root = configured if configured.is_absolute() else Path.home() / ".cache"
    return root / "pulsar-retry"


class JarStore:
    """The cache of jars, which it can fill. Any thread and process may use it.

    Args:
        directory: The folder of the jars; None means `maven` in `default_cache()`.
        mirror: The URL of a Maven repository (`https:`, `http:` or `file:`). None means
            `PULSAR_RETRY_MAVEN_MIRROR`, or else Maven Central.
        progress: Shows the progress of a download; None shows nothing.
        backoff: Seconds before the second try for a file; it doubles with each further try.

    Raises:
        ConfigError: *mirror*, or the variable, is not such a URL.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        mirror: str | None = None,
        progress: Progress | None = None,
        backoff: float = 0.5,
    ) -> None:
        self.directory = directory or default_cache() / "maven"
        self.mirror = _checked_mirror(mirror)
        self._progress = progress or Silent()
        self._backoff = backoff

    def path(self, jar: Jar) -> Path:
        """Return where *jar* is, or will be."""
        return self.directory / jar.path

    def ensure(self, jars: Sequence[Jar]) -> list[Path]:
        """Download those of *jars* that are missing or have the wrong size; return all paths.

        It only compares sizes, which is quick enough for every start; `verify` checks the content.

        Raises:
            StandaloneError: A file could not be downloaded, has the wrong content, or could not be
                written. The message says which file, from where, and what to do.
        """
        missing = [jar for jar in jars if not self._has(jar)]
        if missing:
            self._fetch_all(missing)
        return [self.path(jar) for jar in jars]

    def verify(self, jars: Sequence[Jar]) -> list[Jar]:
        """Check the SHA-256 of all cached jars; remove and return the wrong ones.

        A jar that is not cached is not wrong. `ensure` downloads removed jars again.
        """
        wrong = []
        for jar in jars:
            path = self.path(jar)
            if path.exists() and _sha256(path) != jar.sha256:
                path.unlink(missing_ok=True)
                wrong.append(jar)
        return wrong

    def _has(self, jar: Jar) -> bool:
        try:
            return self.path(jar).stat().st_size == jar.size
        except OSError:
            return False

    def _fetch_all(self, jars: Sequence[Jar]) -> None:
        """Download *jars* in parallel. The first failure ends the other downloads and is raised."""
        cancelled = threading.Event()
        # The largest first, so that no large download is left alone at the end.
        ordered = sorted(jars, key=lambda jar: jar.size, reverse=True)
        self._progress.start(len(jars), sum(jar.size for jar in jars))
        try:
            with ThreadPoolExecutor(_WORKERS, thread_name_prefix="pulsar-retry-jars") as pool:
                futures = [pool.submit(self._fetch, jar, cancelled) for jar in ordered]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:  # also on Ctrl-C; after the end it has no effect
                    cancelled.set()
                    pool.shutdown(wait=False, cancel_futures=True)
        finally:
            self._progress.finish()
        for error in [future.exception() for future in futures if not future.cancelled()]:
            if error is not None and not isinstance(error, CancelledError):
                raise error

    def _fetch(self, jar: Jar, cancelled: threading.Event) -> None:
        """Download one jar, unless another process has done it."""
        target = self.path(jar)
        part = target.with_name(f"{target.name}.part")
        report = _meter(self._progress)
        url = f"{self.mirror}/{jar.path}"
        download = Download(url, jar.size, jar.sha256, self._backoff, report, cancelled)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(part, cancelled) as file:
                if self._has(jar):
                    part.unlink(missing_ok=True)
                    report(jar.size)
                else:
                    fetch(download, file)
                    part.replace(target)
        except OSError as error:
            raise StandaloneError(
                f"could not write {target}: {error}; free some space, or set XDG_CACHE_HOME to a "
                "writable folder"
            ) from error


@contextmanager
def _locked(path: Path, cancelled: threading.Event) -> Iterator[BufferedRandom]:
    """Open *path* for appending and reading, as soon as no other process has it."""
    with path.open("a+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancelled.wait(_LOCK_POLL):
                    raise CancelledError from None
        yield file


def _meter(progress: Progress) -> Callable[[int], None]:
    """Return a function that converts positions in one file to differences for *progress*."""
    last = 0

    def report(position: int) -> None:
        nonlocal last
        progress.advance(position - last)
        last = position

    return report


def _checked_mirror(mirror: str | None) -> str:
    """Return the repository's URL without a slash at the end."""
    name = "mirror" if mirror is not None else MIRROR_VARIABLE
    url = mirror if mirror is not None else os.environ.get(MIRROR_VARIABLE) or MAVEN_CENTRAL
    if urllib.parse.urlsplit(url).scheme not in ("https", "http", "file"):
        raise ConfigError.bad(name, url, "an https:, http: or file: URL of a Maven repository")
    return url.rstrip("/")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
