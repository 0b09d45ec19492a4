"""Runs one JVM with its guard (see `guard`), with the options that Pulsar needs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import attrs

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.jvm import guard, health
from pulsar_retry.standalone.jvm.java import Java

__all__ = ["GuardedProcess", "java_options"]

# As in Pulsar's own start script: its libraries use internals of these packages.
_OPENED = (
    "java.base/sun.net",
    "java.base/java.lang",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC")
_NATIVE_ACCESS_WARNS = 22  # Java releases that warn without these options
_UNSAFE_WARNS = 23
# Seconds that a guard has to stop, in addition to the grace for the JVM.
_GUARD_EXTRA = 5.0
# Seconds that the system may need to remove a killed JVM.
_DYING_PATIENCE = 10.0


def java_options(
    java: Java, heap: str, direct_memory: str, *, fast_start: bool, more: Sequence[str] = ()
) -> list[str]:
    """Return the options for the JVM; the sizes are as for `-Xmx`, and *more* wins over ours.

    The serial collector was chosen by measurements: on two cores it starts as fast as the others,
    has the same throughput, and needs the least memory (ZGC needs two to three times as much).
    """
    options = [
        "-XX:+UseSerialGC",
        f"-Xmx{heap}",
        f"-XX:MaxDirectMemorySize={direct_memory}",
        "-XX:+PerfDisableSharedMem",  # no file in /tmp is left by a killed JVM
        "-XX:+ExitOnOutOfMemoryError",  # else a broker that lost a thread would seem to run
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.awt.headless=true",
    ]
    for package in _OPENED:
        options += ["--add-opens", f"{package}=ALL-UNNAMED"]
    if java.version >= _NATIVE_ACCESS_WARNS:
        options.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= _UNSAFE_WARNS:
        options.append("--sun-misc-unsafe-memory-access=allow")
    if fast_start:
        options.append("-XX:TieredStopAtLevel=1")
    if any(_COLLECTOR.fullmatch(option) for option in more):
        options.remove("-XX:+UseSerialGC")  # Java refuses two collectors
    return [*options, *more]


@attrs.define
class GuardedProcess:
    """A process with its guard. Only `wait` is thread-safe: `Standalone` serialises the calls.

    Attributes:
        pid: The process's id.
    """

    pid: int
    _guard: subprocess.Popen[bytes]
    _grace: float
    _lock: Path
    _ended: bool = False

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        cwd: Path,
        lock: Path,
        output: Path,
        litter: Path | None = None,
        grace: float = 10.0,
    ) -> Self:
        """Start *command*, which ends together with this process at the latest.

        Args:
            command: The program and its arguments.
            cwd: The folder in which it runs.
            lock: A file that is locked while it runs.
            output: The file to which its output is appended.
            litter: A folder that is removed if this process dies without stopping it.
            grace: Seconds between the request to stop and the kill.

        Raises:
            StandaloneError: It does not start, or another process holds *lock*.
        """
        head = [sys.executable, "-I", "-S", guard.__file__]
        guard_arguments = [str(os.getpid()), str(grace), str(lock), str(litter or ""), str(output)]
        process = subprocess.Popen(
            [*head, *guard_arguments, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=_environment(),
            start_new_session=True,
        )
        assert process.stdout is not None
        with process.stdout as reply:
            line = reply.readline().decode(errors="replace").strip()
        if not line.isdecimal():
            cls(0, process, grace, lock).kill()
            raise StandaloneError(line.removeprefix("error: ") or "the JVM's guard did not start")
        return cls(int(line), process, grace, lock)

    def exit_code(self) -> int | None:
        """Return the exit code (128 + n for signal n), or None while it runs."""
        return _shell_exit_code(self._guard.poll())

    def wait(self, timeout: float | None) -> int | None:
        """Wait for its end, at most *timeout* seconds; return the `exit_code`. Thread-safe."""
        try:
            return _shell_exit_code(self._guard.wait(timeout))
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Ask it to end, kill it if it does not end in the grace, and wait until it has ended."""
        self._end(self._grace + _GUARD_EXTRA)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until it has ended."""
        self._end(0.0)

    def _end(self, patience: float) -> None:
        """Close the guard's pipe, which stops the JVM; kill both if that takes too long."""
        if self._ended:  # another process group may have this number by now
            return
        guard_was_killed = (self._guard.poll() or 0) < 0  # then nothing else ends the JVM
        if guard_was_killed or patience == 0:
            _kill_group(self._guard)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(patience or None)
        except subprocess.TimeoutExpired:
            _kill_group(self._guard)
            self._guard.wait()
        if self.pid:  # a JVM that was killed with its guard is not our child
            health.wait_until(lambda: not _is_locked(self._lock), _DYING_PATIENCE)
        self._ended = True


def _shell_exit_code(code: int | None) -> int | None:
    return 128 - code if code is not None and code < 0 else code


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:  # the folder was removed: there is nothing to wait for
        return False
    return False


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill guard and JVM at once, because both are in the process group of the guard."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return our environment, without variables that would change how Pulsar starts."""
    unwanted = ("PULSAR_", "OTEL_", "BOOKIE_")
    return {name: v for name, v in os.environ.items() if not name.startswith(unwanted)}
