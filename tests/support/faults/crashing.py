"""A program that hands messages off and is killed at a chosen step of a chosen hand-off.

The steps are those of pulsar-client. Its producer and consumer are wrapped in this process only;
the code of the product is unchanged.

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

import os
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

sys.path.append(str(Path(__file__).parents[2]))  # the file is started as a program

from support.faults.handing import WAYS
from support.faults.ledger import Ledger

STEPS = ("unsent", "sent", "stored", "receipt", "acknowledged", "acknowledgement sent")

#: Seconds: several times as long as pulsar-client collects a group of acknowledgements.
_GROUP_SENT = 1.0


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


def crash(url: str, topic: str, ledger: Ledger, way: str, step: str, at: int) -> int:
    """Run the program until it is dead; return its exit code, which should be -9."""
    arguments = [url, topic, str(ledger.path), way, step, str(at)]
    return subprocess.run(
        [sys.executable, __file__, *arguments], check=False, timeout=60
    ).returncode


def main() -> None:
    """Hand messages off until the trap kills the process."""
    url, topic, path, way, step, at = sys.argv[1:]
    Trap(step, int(at)).arm()
    with pr.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)) as client:
        WAYS[way](client, topic, Ledger(path), lambda: True)


if __name__ == "__main__":
    main()
