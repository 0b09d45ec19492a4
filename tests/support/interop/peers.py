"""Clients in other languages as sides: programs that read orders, line by line."""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import attrs

from support.brokers.admin import Admin
from support.interop.sides import Consumer, Options, Seen, Side
from support.reading import SOON

#: Seconds to wait for an answer; before Java's first answer, its compiler runs.
PATIENCE = 120


class PeerError(Exception):
    """An exception of the other client."""


class Program:
    """The other client's running program; orders and answers are one line each."""

    def __init__(self, command: Sequence[str | Path], folder: Path) -> None:
        self._log = folder / "stderr"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders: IO[str] = self._process.stdin
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=[self._process.stdout], daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def _read(self, answers: IO[str]) -> None:
        for line in answers:
            self._answers.put(line)
        self._answers.put("")

    def call(self, order: str, **details: Any) -> Any:
        """Send an order, and return the answer.

        Raises:
            PeerError: The client threw an exception.
        """
        try:
            self._orders.write(json.dumps({"do": order, **details}) + "\n")
            self._orders.flush()
            line = self._answers.get(timeout=PATIENCE)
        except (OSError, queue.Empty):
            line = ""
        assert line, f"no answer to {order!r}:\n{self._log.read_text('utf-8', 'replace')[-4000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["is"]

    def end(self) -> None:
        """Close the program's input, which ends it, and wait for its end."""
        with suppress(OSError):
            self._orders.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class PeerSide(Side):
    """A client in another language."""

    def __init__(self, name: str, program: Program, admin: Admin) -> None:
        self.name = name
        self.admin = admin
        self._program = program
        # Answered when the program has started, which can take longer than the broker keeps a topic
        # that nobody uses: Java's compiler runs first.
        self.close_all()

    def _subscribe(self, topic: str | list[str], subscription: str, options: Options) -> Consumer:
        topics = [topic] if isinstance(topic, str) else topic
        number = self._program.call(
            "subscribe", topics=topics, subscription=subscription, **attrs.asdict(options)
        )
        return PeerConsumer(self._program, number)

    def send(
        self, topic: str, *messages: Mapping[str, Any], schema: str = "bytes", batch: bool = False
    ) -> Sequence[str]:
        """Publish messages, to the partitions in turn; return their ids as that client prints them.

        With *batch*, they are one entry, on one partition. Otherwise, messages that are too large
        for the broker are chunked. Each message has `data` (for a schema, `order` or `pair`), and
        optionally `key` or `key_bytes`, `ordering_key`, `event_time` and `properties`.
        """
        lines = [
            {
                name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                for name, value in message.items()
            }
            for message in messages
        ]
        ids: list[str] = self._program.call(
            "send", topic=topic, messages=lines, schema=schema, batch=batch
        )
        return ids

    def close_all(self) -> None:
        """Close everything that a test has opened."""
        self._program.call("close all")


class PeerConsumer:
    """A consumer of a client in another language."""

    def __init__(self, program: Program, number: int) -> None:
        self._program = program
        self._number = number

    def _call(self, order: str, **details: Any) -> Any:
        return self._program.call(order, consumer=self._number, **details)

    def receive(self, milliseconds: int = SOON) -> Seen | None:
        answer = self._call("receive", milliseconds=milliseconds)
        if answer is None:
            return None
        answer["data"] = base64.b64decode(answer["data"] or "")
        answer["ordering_key"] = base64.b64decode(answer["ordering_key"] or "")
        if answer.get("key_bytes") is not None:
            answer["key_bytes"] = base64.b64decode(answer["key_bytes"])
        return Seen(**answer)

    def reconsume(
        self, seen: Seen, delay: float = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        self._call(
            "reconsume",
            message=seen.handle,
            milliseconds=round(delay * 1000),
            properties=properties or {},
        )

    def acknowledge(self, seen: Seen) -> None:
        self._call("acknowledge", message=seen.handle)

    def nack(self, seen: Seen) -> None:
        self._call("nack", message=seen.handle)

    def work(self) -> None:
        self._call("work")

    def rest(self) -> list[tuple[str, int]]:
        return [(payload, count) for payload, count in self._call("rest")]

    def close(self) -> None:
        self._call("close")
