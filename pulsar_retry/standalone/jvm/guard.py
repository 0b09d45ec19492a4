"""The process between us and the JVM: it ends the JVM when we are gone, however we went.

Run as a program (`python -I -S guard.py PARENT GRACE LOCK LITTER LOG COMMAND…`) in a session of its
own, so that the terminal's Ctrl-C reaches neither it nor the JVM. Its standard input is a pipe
whose other end only the parent holds: at its end, because the parent closed it to stop the JVM or
because the parent died, the JVM is asked to end and after GRACE seconds is killed. A process that
the parent forked may hold the pipe open beyond the parent's death, so the guard also looks whether
its parent is still PARENT. (Linux's PR_SET_PDEATHSIG would be less: it is tied to the thread that
started the child, and no other system has it.)

LOCK is a file that is locked as long as the JVM lives, so that no two use the same data. LITTER is
a folder to remove when the parent died, or "". LOG gets what the JVM prints. The first line on
standard output is the JVM's process id, or `error: …`; the exit code is the JVM's.

Standard library only: it runs without site-packages, to be small and quick.
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

_POLL = 1.0  # seconds between looks at who the parent is


def main(arguments: list[str]) -> int:
    """Run the JVM until it ends by itself or is no longer wanted."""
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
    return code if code >= 0 else 128 - code  # as a shell reports a signal


def _take(lock: TextIO) -> str:
    """Lock the file and note who has it; return what is wrong when another guard has it."""
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
        return subprocess.Popen(  # noqa: S603 - what our parent tells us to run
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Should we be killed: it stays locked until the JVM's last thread is gone, too.
            pass_fds=[lock.fileno()],
        )


def _say(line: str, code: int = 0) -> int:
    """Tell the parent, and let it see the end of the stream."""
    # A parent that died meanwhile is no reason to fail: the watch will notice.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())
    os.close(1)
    return code


class _Watch:
    """Waits for the first of: the JVM's end, the pipe's end, the parent's end, a signal to us."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._wakeup, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        self._told_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up needs a handler

    def _on_stop_signal(self, *_: object) -> None:
        self._told_to_stop = True

    def until_over(self, jvm: subprocess.Popen[bytes], grace: float) -> int:
        """Wait, end the JVM if it was not the JVM that ended, and return its exit code."""
        while jvm.poll() is None:
            readable, _, _ = select.select([0, self._wakeup], [], [], _POLL)
            if self._wakeup in readable:
                os.read(self._wakeup, 1024)  # also comes when the JVM is stopped and continued
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
