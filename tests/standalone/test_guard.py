"""The guard, with a shell in the JVM's place."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.jvm.jvm import GuardedProcess

STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]


def start(folder: Path, command: list[str], grace: float = 0.1) -> GuardedProcess:
    """Start *command* under a guard in *folder*."""
    return GuardedProcess.start(
        command, cwd=folder, lock=folder / "lock", output=folder / "out", grace=grace
    )


def state_of(pid: int) -> str:
    """Return the process's state letter as `ps` shows it; "" when there is none."""
    command = ["/bin/ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout[:1]


def test_exit_code_and_output_are_the_programs(tmp_path: Path) -> None:
    """What it prints goes to the file, and how it ends is told."""
    process = start(tmp_path, ["sh", "-c", "echo hello; echo oops >&2; exit 3"])
    assert process.wait(60) == 3
    assert (tmp_path / "out").read_text() == "hello\noops\n"
    process.stop()


def test_exit_by_a_signal_is_told_as_a_shell_does(tmp_path: Path) -> None:
    """A crash is no success: 128 and the signal's number."""
    process = start(tmp_path, ["sh", "-c", "kill -SEGV $$"])
    assert process.wait(60) == 128 + signal.SIGSEGV
    process.stop()


def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """Past the grace there is no mercy."""
    process = start(tmp_path, STUBBORN)
    process.stop()
    assert process.exit_code() in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_program_that_does_not_start(tmp_path: Path) -> None:
    """The operating system's reason is passed on."""
    with pytest.raises(StandaloneError, match="No such file or directory: 'no-such-program'"):
        start(tmp_path, ["no-such-program"])


def test_one_folder_one_process(tmp_path: Path) -> None:
    """The lock is held as long as the process lives, and no longer."""
    process = start(tmp_path, ["sleep", "60"])
    with pytest.raises(StandaloneError, match="in use by process"):
        start(tmp_path, ["sleep", "60"])
    process.kill()
    start(tmp_path, ["sleep", "60"]).kill()


def test_the_folder_is_in_use_while_the_program_outlives_its_guard(tmp_path: Path) -> None:
    """Nobody may write there until it is gone, and killing it waits for that."""
    process = start(tmp_path, ["sleep", "60"])
    os.kill(os.getpgid(process.pid), signal.SIGKILL)  # the guard leads the group
    assert process.wait(60) == 128 + signal.SIGKILL
    with pytest.raises(StandaloneError, match="in use by process"):
        start(tmp_path, ["sleep", "60"])
    process.kill()
    start(tmp_path, ["sleep", "60"]).kill()


def test_stopping_and_continuing_the_process_is_no_end(tmp_path: Path) -> None:
    """A frozen broker is a fault that tests make: the guard lets them, and goes on watching."""
    process = start(tmp_path, ["sleep", "60"])
    os.kill(process.pid, signal.SIGSTOP)
    assert process.wait(0.2) is None
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(0.2) is None
    process.stop()
    assert process.exit_code() == 128 + signal.SIGTERM


def test_signal_to_the_guard_ends_the_process(tmp_path: Path) -> None:
    """A service manager that signals the whole tree leaves no orphan."""
    process = start(tmp_path, ["sleep", "60"])
    os.kill(os.getpgid(process.pid), signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    process.stop()


def test_killed_guard_leaves_no_orphan(tmp_path: Path) -> None:
    """When somebody kills the guard, `stop` still ends what it guarded."""
    process = start(tmp_path, ["sleep", "60"])
    os.kill(os.getpgid(process.pid), signal.SIGKILL)
    process.wait(60)
    process.stop()
    assert state_of(process.pid) in ("", "Z")  # Z: nobody has reaped it yet


def test_terminal_signals_do_not_reach_it(tmp_path: Path) -> None:
    """It has a session of its own."""
    process = start(tmp_path, ["sleep", "60"])
    assert os.getsid(process.pid) != os.getsid(0)
    process.kill()
