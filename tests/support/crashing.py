"""A program that hands messages on and is killed at a chosen step of a chosen hand-off.

The steps are those of pulsar-client: its producer and consumer are wrapped here, in this process
only, and nothing of the product knows of it.

- ``unsent``: before the letter is given to pulsar-client.
- ``sent``: right after; whether the broker has it by then is chance.
- ``stored``: the broker's receipt is here, and nobody has seen it.
- ``receipt``: the receipt was seen, and the acknowledgement is about to be given to pulsar-client.
- ``acknowledged``: right after that; it is in the group that pulsar-client sends later.
- ``told``: at the next hand-off, which is so late that the broker knows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar
from handing import WAYS
from ledger import Ledger

import pulsar_retry as pr

STEPS = ("unsent", "sent", "stored", "receipt", "acknowledged", "told")

#: Seconds, several times what pulsar-client keeps a group of acknowledgements for.
_TOLD = 1.0


def die(*_: Any) -> None:
    """End as by kill -9: no destructor, no flush, no farewell to the broker."""
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

        # Functions, unlike bound methods, are given the producer or consumer.
        def send(*arguments: Any) -> None:
            self.send(*arguments)

        def acknowledge(*arguments: Any) -> None:
            self.acknowledge(*arguments)

        _pulsar.Producer.send_async = send
        _pulsar.Consumer.acknowledge_async = acknowledge

    def send(self, producer: Any, message: Any, callback: Any) -> None:
        """Publish a letter, unless this is the end."""
        self._sends += 1
        its_turn = self._sends == self._at
        if self._step == "told" and self._sends == self._at + 1:
            time.sleep(_TOLD)
            die()
        if its_turn and self._step == "unsent":
            die()
        self._send(producer, message, die if its_turn and self._step == "stored" else callback)
        if its_turn and self._step == "sent":
            die()

    def acknowledge(self, consumer: Any, message: Any, callback: Any) -> None:
        """Acknowledge an original, unless this is the end."""
        self._acknowledgements += 1
        its_turn = self._acknowledgements == self._at
        if its_turn and self._step == "receipt":
            die()
        self._acknowledge(consumer, message, callback)
        if its_turn and self._step == "acknowledged":
            die()


def crash(url: str, topic: str, ledger: Ledger, way: str, step: str, at: int) -> int:
    """Run the program until it is dead; return its exit code, -9 if all is well."""
    arguments = [url, topic, str(ledger.path), way, step, str(at)]
    return subprocess.run(
        [sys.executable, __file__, *arguments], check=False, timeout=60
    ).returncode


def main() -> None:
    """Hand messages on until the trap snaps."""
    url, topic, path, way, step, at = sys.argv[1:]
    Trap(step, int(at)).arm()
    with pr.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)) as client:
        WAYS[way](client, topic, Ledger(path), lambda: True)


if __name__ == "__main__":
    main()
