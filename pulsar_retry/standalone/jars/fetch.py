"""Downloads one file of known size and SHA-256: it resumes, tries again, and checks the result."""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from io import BufferedRandom

import attrs

from pulsar_retry._version import __version__
from pulsar_retry.errors import StandaloneError

__all__ = ["CancelledError", "Download", "fetch"]

_ATTEMPTS = 5
_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 16
_RANGE_NOT_SATISFIABLE = 416
# Statuses after which another try may succeed; every other error status is final.
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class CancelledError(Exception):
    """The download was cancelled because its result is not needed any more."""


class _TransientError(Exception):
    """This try has failed; another one may succeed."""


@attrs.frozen
class Download:
    """A file to download, with its expected properties.

    Attributes:
        url: An `https:`, `http:` or `file:` URL.
        size: The expected size in bytes.
        sha256: The expected SHA-256, as lower-case hexadecimal digits.
        backoff: Seconds before the second try; it doubles with each further try.
        progress: Called with the current size of the file, in bytes, whenever it changes. It goes
            back if a try has to start again.
        cancelled: Set by another thread to end the download early.
    """

    url: str
    size: int
    sha256: str
    backoff: float
    progress: Callable[[int], None]
    cancelled: threading.Event


def fetch(download: Download, file: BufferedRandom) -> None:
    """Complete *file* (open for appending and reading), and keep what it has already.

    Raises:
        CancelledError: `download.cancelled` was set.
        StandaloneError: The file could not be downloaded, or has the wrong content.
        OSError: *file* could not be written.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _attempt(download, file)
        except _TransientError as failure:
            if attempt == _ATTEMPTS:
                hint = (
                    "check the network and HTTPS_PROXY, then run this again: the download resumes"
                )
                raise _error(download, f"{failure} (tried {attempt} times)", hint) from failure
            jitter = random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
            if download.cancelled.wait(download.backoff * 2 ** (attempt - 1) * jitter):
                raise CancelledError from failure
        else:
            return


def _attempt(download: Download, file: BufferedRandom) -> None:
    """Make one try: download what is missing in *file*, then check all of it."""
    start = file.seek(0, os.SEEK_END)
    if start > download.size:
        start = file.truncate(0)
    if start < download.size:
        with _open(download, start) as response:
            # A server without support for ranges answers 200 with the whole file; so does `file:`.
            if start and response.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = file.truncate(0)
            _check_length(download, start, response)
            _copy(download, response, file, start)
    _check_content(download, file, resumed=start > 0)


def _open(download: Download, start: int) -> http.client.HTTPResponse:
    """Ask for the bytes from *start* on."""
    headers = {"User-Agent": f"pulsar-retry/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(download.url, headers=headers)  # noqa: S310 - see JarStore
    # create_default_context: the system's certificates, or those of SSL_CERT_FILE.
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    try:
        # The opener's default handlers honour HTTPS_PROXY, NO_PROXY and their like.
        response = urllib.request.build_opener(https).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise _status_error(download, error) from error
    except urllib.error.URLError as error:
        raise _connection_error(download, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _TransientError(f"{type(error).__name__}: {error}") from error
    return response  # type: ignore[no-any-return]  # what a handler returns is unknown


def _copy(
    download: Download, response: http.client.HTTPResponse, file: BufferedRandom, position: int
) -> None:
    """Append what is missing to *file*, which is at *position*."""
    download.progress(position)
    while position < download.size:
        if download.cancelled.is_set():
            raise CancelledError
        try:
            block = response.read(min(_CHUNK, download.size - position))
        except (OSError, http.client.HTTPException) as error:
            raise _TransientError(f"{type(error).__name__}: {error}") from error
        if not block:
            raise _TransientError(f"the connection ended after {position} of {download.size} bytes")
        file.write(block)
        position += len(block)
        download.progress(position)


def _check_length(download: Download, start: int, response: http.client.HTTPResponse) -> None:
    """Refuse a response with another size at once, for example the log-in page of a proxy."""
    announced = response.headers.get("Content-Length", "")
    if announced.isdecimal() and start + int(announced) != download.size:
        raise _error(
            download,
            f"the server offers {start + int(announced)} bytes, the lock file says {download.size}",
            "the mirror or a proxy does not serve the same file as Maven Central",
        )


def _check_content(download: Download, file: BufferedRandom, *, resumed: bool) -> None:
    """Check the SHA-256. Bytes from an earlier process get one more try, from the start."""
    file.flush()
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == download.sha256:
        download.progress(download.size)
        return
    file.truncate(0)
    if resumed:
        raise _TransientError(f"the resumed file has SHA-256 {found}, not {download.sha256}")
    raise _error(
        download,
        f"SHA-256 is {found}, the lock file says {download.sha256}",
        "the mirror or a proxy does not serve the same file as Maven Central",
    )


def _status_error(download: Download, error: urllib.error.HTTPError) -> Exception:
    """Return a transient or a final error, according to the status."""
    status = f"HTTP {error.code} {error.reason}"
    if error.code in _TRANSIENT_STATUS:
        return _TransientError(status)
    if error.code == _RANGE_NOT_SATISFIABLE:  # only a resumed try can get this
        return _TransientError(status)
    hint = "set PULSAR_RETRY_MAVEN_MIRROR to a repository that has the file"
    return _error(download, status, hint)


def _connection_error(download: Download, error: urllib.error.URLError) -> Exception:
    """Return a transient or a final error, according to the reason."""
    if isinstance(error.reason, ssl.SSLCertVerificationError):
        hint = "set SSL_CERT_FILE to a file with the certificate authority of your network"
        return _error(download, str(error.reason), hint)
    if isinstance(error.reason, FileNotFoundError):  # a `file:` mirror
        return _error(download, "no such file", "check PULSAR_RETRY_MAVEN_MIRROR")
    return _TransientError(str(error.reason))


def _error(download: Download, what: str, hint: str) -> StandaloneError:
    name = download.url.rpartition("/")[2]
    return StandaloneError(f"could not download {name} from {download.url}: {what}; {hint}")
