"""A program that hands messages off and is killed at a chosen step of a chosen hand-off.

The steps are those of pulsar-client. Its producer and consumer are wrapped in this process only;
the code of the product is unchanged. Where letters are handed off in C++, a library of the test is
in the place of pulsar-client's (trap.cpp); it does the same.

- ``unsent``: before the letter is given to pulsar-client.
- ``sent``: right after that; the broker may have the letter or not.
- ``stored``: the broker's receipt has come, but the consumer has not seen it.
- ``receipt``: the consumer has seen the receipt, and has not acknowledged the original yet.
- ``acknowledged``: right after that; the acknowledgement is in a group that pulsar-client sends
  later.
- ``acknowledgement sent``: at the next hand-off, which waits until the broker has the
  acknowledgement.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _pulsar
import pulsar

import pulsar_retry as pr
from pulsar_retry.native.loading import VARIABLE, native

sys.path.append(str(Path(__file__).parents[2]))  # the file is started as a program

from support.faults.handing import WAYS
from support.faults.ledger import Ledger

STEPS = ("unsent", "sent", "stored", "receipt", "acknowledged", "acknowledgement sent")

#: Seconds: several times as long as pulsar-client collects a group of acknowledgements.
_GROUP_SENT = 3.0


def die(*_: Any) -> None:
    """End as by kill -9: without destructors, without a flush, without closing connections."""
    os.kill(os.getpid(), signal.SIGKILL)


class Trap:
    """Kills this process at a step of hand-off number *at*, counted from 1."""

    def __init__(self, step: str, at: int) -> None:
        self._step = step
        self._at = at
        self._sends = self._acknowledgements = 0
        self._send = _pulsar.Producer.send_async
        self._acknowledge: Callable[..., None] = _pulsar.Consumer.acknowledge_async

    def arm(self) -> None:
        """Wrap pulsar-client."""

        # Unlike bound methods, functions get the producer or consumer as an argument.
        def send(*arguments: Any) -> None:
            self.send(*arguments)

        def acknowledge(*arguments: Any) -> None:
            self.acknowledge(*arguments)

        _pulsar.Producer.send_async = send
        _pulsar.Consumer.acknowledge_async = acknowledge

    def send(self, producer: Any, message: Any, callback: Any) -> None:
        """Publish a letter, or die at this step."""
        self._sends += 1
        its_turn = self._sends == self._at
        if self._step == "acknowledgement sent" and self._sends == self._at + 1:
            time.sleep(_GROUP_SENT)
            die()
        if its_turn and self._step == "unsent":
            die()
        self._send(producer, message, die if its_turn and self._step == "stored" else callback)
        if its_turn and self._step == "sent":
            die()

    def acknowledge(self, consumer: Any, message: Any, callback: Any) -> None:
        """Acknowledge an original, or die at this step."""
        self._acknowledgements += 1
        its_turn = self._acknowledgements == self._at
        if its_turn and self._step == "receipt":
            die()
        self._acknowledge(consumer, message, callback)
        if its_turn and self._step == "acknowledged":
            die()


def native_trap(folder: Path) -> Path:
    """Compile the trap for hand-offs in C++.

    Raises:
        LookupError: letters are not handed off in C++ here, or there is no compiler.
    """
    if why := native().why:
        raise LookupError(f"letters are handed off in Python: {why}")
    if not (compiler := shutil.which("c++")):
        raise LookupError("there is no C++ compiler")
    source, library = Path(__file__).with_name("trap.cpp"), folder / "trap.so"
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wl,--no-as-needed"]
    subprocess.run(
        [compiler, *options, str(source), "-o", str(library), _pulsar_library()], check=True
    )
    return library


def _pulsar_library() -> str:
    """Return the path of pulsar-client's library, which this process has loaded."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(line.split()[-1] for line in lines if "/libpulsar" in line)


def _arm_native(library: str, step: str, at: int) -> None:
    """Have hand-offs in C++ use the trap, and arm it."""
    trap = ctypes.CDLL(library)
    assert trap.find_real(_pulsar_library().encode()) == 0
    _pulsar.__file__ = library  # where the product looks for the functions
    assert native().module, native().why
    trap.arm(step.encode(), at, int(_GROUP_SENT))


def crash(
    url: str, topic: str, ledger: Ledger, way: str, step: str, at: int, trap: Path | None = None
) -> int:
    """Run the program until it is dead; return its exit code, which should be -9.

    Letters are handed off in C++ if *trap* is given, otherwise in Python.
    """
    arguments = [url, topic, str(ledger.path), way, step, str(at), *([str(trap)] if trap else [])]
    return subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, VARIABLE: "1" if trap else "0"},
        check=False,
        timeout=180,
    ).returncode


def main() -> None:
    """Hand messages off until the trap kills the process."""
    url, topic, path, way, step, at, *trap = sys.argv[1:]
    if trap:
        _arm_native(trap[0], step, int(at))
    else:
        Trap(step, int(at)).arm()
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client:
        WAYS[way](client, topic, Ledger(path), lambda: True)


if __name__ == "__main__":
    main()
