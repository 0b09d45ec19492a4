"""The process between us and the JVM. It ends the JVM when our process has ended, for any reason.

It is a program (`python -I -S guard.py PARENT GRACE LOCK LITTER LOG COMMAND…`) in its own session,
so that Ctrl-C in the terminal reaches neither it nor the JVM. Its standard input is a pipe, and
only the parent has the other end. The pipe ends when the parent closes it to stop the JVM, or when
the parent dies. Then the guard asks the JVM to end, and kills it after GRACE seconds. A process
that the parent has forked may keep the pipe open after the parent's death, so the guard also checks
whether its parent is still PARENT. (Linux's PR_SET_PDEATHSIG is no replacement: it depends on the
thread that started the child, and other systems do not have it.)

LOCK is a file that is locked while the JVM lives, so that two JVMs never use the same data. LITTER
is a folder to remove if the parent has died, or "". LOG receives the output of the JVM. The first
line on standard output is the JVM's process id, or `error: …`. The exit code is that of the JVM.

It uses only the standard library, without site-packages, to be small and quick.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

_POLL = 1.0  # seconds between two checks of the parent


def main(arguments: list[str]) -> int:
    """Run the JVM until it ends by itself or is not needed any more."""
    parent, grace, lock, litter, log, *command = arguments
    with Path(lock).open("a+") as locked:
        problem = _take(locked)
        if problem:
            return _say(f"error: {problem}", 1)
        watch = _Watch(int(parent))
        try:
            jvm = _start(command, log, locked)
        except OSError as error:
            return _say(f"error: {error}", 1)
        _say(str(jvm.pid))
        code = watch.until_over(jvm, float(grace))
    if litter and os.getppid() != int(parent):
        shutil.rmtree(litter, ignore_errors=True)
    return code if code >= 0 else 128 - code  # like a shell for a signal


def _take(lock: TextIO) -> str:
    """Lock the file and write our process id to it; return the problem if another guard has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        return f"the data folder is in use by process {lock.read().strip() or '?'}"
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return ""


def _start(command: list[str], log: str, lock: TextIO) -> subprocess.Popen[bytes]:
    with Path(log).open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # If we are killed, the file stays locked until the JVM's last thread has ended.
            pass_fds=[lock.fileno()],
        )


def _say(line: str, code: int = 0) -> int:
    """Send a line to the parent, and close the stream."""
    # If the parent has died meanwhile, do not fail: the watch will notice it.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())
    os.close(1)
    return code


class _Watch:
    """Waits for the end of the JVM, of the pipe or of the parent, or for a signal."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._wakeup, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        self._told_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up requires a handler

    def _on_stop_signal(self, *_: object) -> None:
        self._told_to_stop = True

    def until_over(self, jvm: subprocess.Popen[bytes], grace: float) -> int:
        """Wait, end the JVM if it still runs, and return its exit code."""
        while jvm.poll() is None:
            readable, _, _ = select.select([0, self._wakeup], [], [], _POLL)
            if self._wakeup in readable:
                os.read(self._wakeup, 1024)  # also happens when the JVM is stopped and continued
            if 0 in readable or self._told_to_stop or os.getppid() != self._parent:
                return _stop(jvm, grace)
        return jvm.returncode


def _stop(jvm: subprocess.Popen[bytes], grace: float) -> int:
    jvm.terminate()
    try:
        return jvm.wait(grace)
    except subprocess.TimeoutExpired:
        jvm.kill()
        return jvm.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
