"""One process of a cluster on this machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone import ports
from pulsar_retry.standalone.config import Setting
from pulsar_retry.standalone.data import journal
from pulsar_retry.standalone.data.folder import Folder
from pulsar_retry.standalone.jvm import health, jvm
from pulsar_retry.standalone.jvm.java import Java
from support.brokers.cluster_config import Program

__all__ = ["BookieMember", "BrokerMember", "Member", "Runtime", "run_jvm"]

#: Seconds that the ports of a killed process may stay in use, until the system has removed it.
_RELEASE_PATIENCE = 10.0

#: Seconds that a start may take.
STARTUP_TIMEOUT = 180.0


@attrs.frozen
class Runtime:
    """What all members of a cluster have in common.

    Attributes:
        java: The Java runtime.
        jars: The class path.
        root: The folder with a folder for each member. It is removed if this process dies.
    """

    java: Java
    jars: Sequence[Path]
    root: Path


@attrs.define(eq=False)
class Member:
    """A process of a cluster. It can be stopped, killed and started again with its data.

    Calls for one member must not overlap. Different threads may use different members.

    Attributes:
        name: The name, such as ``bookie-1``.
        port: The port on loopback.
    """

    name: str
    port: int
    _runtime: Runtime
    _program: Program
    _settings: Mapping[str, Setting]
    _process: jvm.GuardedProcess | None = attrs.field(default=None, init=False)

    @property
    def is_running(self) -> bool:
        """Whether the process exists; it may not be ready yet."""
        return self._process is not None and self._process.exit_code() is None

    def start(self) -> None:
        """Start the process and return when it is ready. Nothing is done if it runs.

        Raises:
            StandaloneError: The port is in use, or the process did not become ready. In the last
                case the message ends with the last lines of its log.
        """
        self.launch()
        self.await_ready()

    def stop(self) -> None:
        """Ask the process to end, wait, and kill it if that takes too long. Twice is no error."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """Kill the process with SIGKILL, like a crash. It may be called twice."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stop the process if it runs, and start it with the same data and port.

        Raises:
            StandaloneError: See `start`.
        """
        self.stop()
        self.start()

    def launch(self) -> None:
        """Start the process without waiting until it is ready.

        Raises:
            StandaloneError: The port is in use, or the process cannot be started.
        """
        if self.is_running:
            return
        if not ports.gets_free(self.port, _RELEASE_PATIENCE):
            raise StandaloneError(f"{self.name}: port {self.port} of {ports.LOOPBACK} is taken")
        folder = self._folder()
        folder.write_conf(self._settings)
        self._process = run_jvm(self._runtime, folder, self._program, str(folder.conf))

    def await_ready(self) -> None:
        """Wait until the process is ready.

        Raises:
            StandaloneError: The process has ended, or is not ready in time.
        """
        process = self._process
        assert process is not None, f"{self.name} was not started"
        ready = health.wait_until(
            lambda: process.exit_code() is not None or self._is_ready(), STARTUP_TIMEOUT
        )
        code = process.exit_code()
        if ready and code is None:
            return
        what = f"was not ready after {STARTUP_TIMEOUT:g} s"
        if code is not None:
            what = f"ended with exit code {code} while it started"
        raise StandaloneError(f"{self.name} {what}\n{self._folder().tail()}")

    def _is_ready(self) -> bool:
        return _accepts(self.port)

    def _folder(self) -> Folder:
        return Folder.open(self._runtime.root / self.name)


@attrs.define(eq=False)
class BrokerMember(Member):
    """A broker.

    Attributes:
        web_port: The port of its REST API.
        tls_port: The port for clients with TLS.
        web_tls_port: The port of its REST API with TLS.
    """

    web_port: int = attrs.field(kw_only=True)
    tls_port: int = attrs.field(kw_only=True)
    web_tls_port: int = attrs.field(kw_only=True)
    _token: str = attrs.field(kw_only=True, repr=False)

    @property
    def service_url(self) -> str:
        """The URL for clients, who find the other brokers through it."""
        return f"pulsar://{ports.LOOPBACK}:{self.port}"

    @property
    def admin_url(self) -> str:
        """The root of its REST API, without a slash at the end."""
        return f"http://{ports.LOOPBACK}:{self.web_port}"

    def _is_ready(self) -> bool:
        # An answer alone is not enough: it could come from another process that has just taken the
        # port.
        return self._folder().broker_serves() and health.is_ready(self.admin_url, self._token)


@attrs.define(eq=False)
class BookieMember(Member):
    """A bookie. At its start, an entry that a kill left incomplete is cut from its journal."""

    def launch(self) -> None:
        """Start the process without waiting until it is ready.

        Raises:
            StandaloneError: See `Member.launch`; also if the journal cannot be read.
        """
        if not self.is_running:
            data = self._folder().path / "data"
            journal.mend(data / "journal", data / "ledgers", name=self.name)
        super().launch()


def run_jvm(
    runtime: Runtime, folder: Folder, program: Program, *arguments: str
) -> jvm.GuardedProcess:
    """Start a JVM in *folder*, which ends together with this process at the latest.

    Raises:
        StandaloneError: The JVM cannot be started.
    """
    java = runtime.java
    options = jvm.java_options(java, program.heap, program.direct_memory, fast_start=True)
    options += [f"-D{each}" for each in program.properties]
    class_and_arguments = [program.main, *program.arguments, *arguments]
    arguments_file = folder.write_arguments(options, runtime.jars, class_and_arguments)
    return jvm.GuardedProcess.start(
        [str(java.executable), f"@{arguments_file}"],
        cwd=folder.path,
        lock=folder.lock,
        output=folder.output,
        litter=runtime.root,
    )


def _accepts(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((ports.LOOPBACK, port)) == 0
