"""The jar cache of each user: finds missing jars, downloads them in parallel, and checks them.

The cache is `$XDG_CACHE_HOME/pulsar-retry/maven` (default `~/.cache/…`), with the layout of a Maven
repository. A jar is written to `<name>.part` with a file lock, and renamed when its SHA-256 is
right. So any number of processes may download at the same time, and none of them ever sees an
incomplete jar.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import random
import ssl
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

import attrs

from pulsar_retry._version import __version__
from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.standalone.jars.lock import Jar

__all__ = ["MAVEN_CENTRAL", "MIRROR_VARIABLE", "JarStore", "default_cache", "to_stderr"]

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
MIRROR_VARIABLE = "PULSAR_RETRY_MAVEN_MIRROR"

_WORKERS = 8
_LOCK_POLL = 0.1  # seconds between two tries to get the lock of another process
_TRIES = 5
_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 16
_MEGABYTE = 1_000_000
#: Statuses after which another try may succeed; every other error status is final.
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})

_NETWORK = "check the network, HTTPS_PROXY and SSL_CERT_FILE, and run this again"
_OTHER_FILE = "the mirror or a proxy does not serve the same file as Maven Central"


class _CancelledError(Exception):
    """The download was cancelled because its result is not needed any more."""


@attrs.define
class _FailedError(Exception):
    """A try has failed. If it is *final*, another one cannot succeed."""

    what: str
    final: bool


def to_stderr(line: str) -> None:
    """Print a line about a download."""
    sys.stderr.write(f"{line}\n")


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
        progress: Gets lines of text that say how far a download is; None shows nothing.
        backoff: Seconds before the second try for a file; it doubles with each further try.

    Raises:
        ConfigError: *mirror*, or the variable, is not such a URL.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        mirror: str | None = None,
        progress: Callable[[str], object] | None = None,
        backoff: float = 0.5,
    ) -> None:
        self.directory = directory or default_cache() / "maven"
        self.mirror = _checked_mirror(mirror)
        self._progress = progress or (lambda _line: None)
        self._backoff = backoff

    def path(self, jar: Jar) -> Path:
        """Return where *jar* is, or will be."""
        return self.directory / jar.path

    def ensure(self, jars: Sequence[Jar]) -> list[Path]:
        """Download those of *jars* that are missing or have the wrong size; return all paths.

        Raises:
            StandaloneError: A file could not be downloaded, has the wrong content, or could not be
                written. The message says which file, from where, and what to do.
        """
        missing = [jar for jar in jars if not self._has(jar)]
        if missing:
            self._fetch_all(missing)
        return [self.path(jar) for jar in jars]

    def _has(self, jar: Jar) -> bool:
        try:
            return self.path(jar).stat().st_size == jar.size
        except OSError:
            return False

    def _fetch_all(self, jars: Sequence[Jar]) -> None:
        """Download *jars* in parallel. The first failure ends the other downloads and is raised."""
        cancelled = threading.Event()
        size, done, tenths = sum(jar.size for jar in jars), 0, 0
        what = f"of {size / _MEGABYTE:.0f} MB"
        self._progress(f"downloading Pulsar: {len(jars)} files {what}")
        # The largest first, so that no large download is left alone at the end.
        ordered = sorted(jars, key=lambda jar: jar.size, reverse=True)
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="pulsar-retry-jars") as pool:
            futures = {pool.submit(self._fetch, jar, cancelled): jar for jar in ordered}
            try:
                for future in as_completed(futures):
                    future.result()
                    done += futures[future].size
                    if done * 10 // size > tenths:
                        tenths = done * 10 // size
                        self._progress(f"downloading Pulsar: {done / _MEGABYTE:.0f} {what}")
            finally:  # also on Ctrl-C; after the end it has no effect
                cancelled.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, jar: Jar, cancelled: threading.Event) -> None:
        """Download one jar, unless another process has done it."""
        target = self.path(jar)
        part = target.with_name(f"{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(part, cancelled) as file:
                if self._has(jar):
                    part.unlink(missing_ok=True)
                else:
                    self._download(jar, file, cancelled)
                    part.replace(target)
        except OSError as error:
            raise StandaloneError(
                f"could not write {target}: {error}; free some space, or set XDG_CACHE_HOME to a "
                "writable folder"
            ) from error

    def _download(self, jar: Jar, file: BufferedRandom, cancelled: threading.Event) -> None:
        """Write a jar to *file*; try again after failures that may pass."""
        url = f"{self.mirror}/{jar.path}"
        for number in range(1, _TRIES + 1):
            try:
                _copy(url, jar, file, cancelled)
            except _FailedError as failure:
                file.truncate(0)
                if failure.final:
                    hint = f"set {MIRROR_VARIABLE} to a repository that has the file"
                    raise _error(url, failure.what, hint) from failure
                if number == _TRIES:
                    raise _error(
                        url, f"{failure.what} (tried {number} times)", _NETWORK
                    ) from failure
            else:
                return
            jitter = random.uniform(0.5, 1.5)
            if cancelled.wait(self._backoff * 2 ** (number - 1) * jitter):
                raise _CancelledError


def _copy(url: str, jar: Jar, file: BufferedRandom, cancelled: threading.Event) -> None:
    """Make one try to write a jar to *file*.

    Raises:
        _FailedError: it was not read to its end.
        StandaloneError: it has another content.
    """
    file.truncate(0)  # what an earlier process has left
    digest, size = hashlib.sha256(), 0
    for block in _blocks(url):
        if cancelled.is_set():
            raise _CancelledError
        file.write(block)
        digest.update(block)
        size += len(block)
    if size < jar.size:
        raise _FailedError(f"the connection ended after {size} of {jar.size} bytes", final=False)
    if digest.hexdigest() != jar.sha256:
        file.truncate(0)
        what = f"SHA-256 is {digest.hexdigest()}, the lock file says {jar.sha256}"
        raise _error(url, what, _OTHER_FILE)
    file.flush()


def _blocks(url: str) -> Iterator[bytes]:
    """Yield the content of a URL.

    Raises:
        _FailedError: it was not read.
    """
    headers = {"User-Agent": f"pulsar-retry/{__version__}"}
    request = urllib.request.Request(url, headers=headers)
    # create_default_context: the system's certificates, or those of SSL_CERT_FILE.
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    try:
        # The opener's default handlers honour HTTPS_PROXY, NO_PROXY and their like.
        with urllib.request.build_opener(https).open(request, timeout=_TIMEOUT) as response:
            while block := response.read(_CHUNK):
                yield block
    except urllib.error.HTTPError as error:
        error.close()
        final = error.code not in _TRANSIENT_STATUS
        raise _FailedError(f"HTTP {error.code} {error.reason}", final) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _FailedError(str(reason), isinstance(reason, FileNotFoundError)) from error


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
                    raise _CancelledError from None
        yield file


def _error(url: str, what: str, hint: str) -> StandaloneError:
    name = url.rpartition("/")[2]
    return StandaloneError(f"could not download {name} from {url}: {what}; {hint}")


def _checked_mirror(mirror: str | None) -> str:
    """Return the repository's URL without a slash at the end."""
    name = "mirror" if mirror is not None else MIRROR_VARIABLE
    url = mirror if mirror is not None else os.environ.get(MIRROR_VARIABLE) or MAVEN_CENTRAL
    if urllib.parse.urlsplit(url).scheme not in ("https", "http", "file"):
        raise ConfigError.bad(name, url, "an https:, http: or file: URL of a Maven repository")
    return url.rstrip("/")
