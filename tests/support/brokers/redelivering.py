"""A proxy that records when a client asks the broker for redeliveries, in a separate process.

This measures only the client's part, without the time that the broker takes to redeliver. The
program prints its port, relays data until its input ends, and then prints its records.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Self

#: A ledger and an entry.
Entry = tuple[int, int]

#: Of the binary protocol: the number of the command, which is also the number of its field.
_REDELIVER = 20
_BYTES = 2  # the wire type of fields with a length

_seen: list[tuple[float, bytes]] = []


class RedeliveryProxy:
    """A proxy before a broker that listens on 127.0.0.1; a context manager.

    Attributes:
        url: The service URL for clients.
        asked: The entries that were asked for, with the time by `time.monotonic`; set at the end.
    """

    def __init__(self, service_url: str) -> None:
        self.asked: dict[Entry, list[float]] = {}
        self._port = service_url.rpartition(":")[2].rstrip("/")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._port], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = f"pulsar://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_error: object) -> None:
        seen = pickle.loads(self._process.communicate(timeout=60)[0])
        for moment, command in seen:
            for entry in _entries(command):
                self.asked.setdefault(entry, []).append(moment)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message whose fields are numbers and messages."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        value = number()
        if key & 7 == _BYTES:
            at += value
            yield key >> 3, data[at - value : at]
        else:
            yield key >> 3, value


def _entries(command: bytes) -> Iterator[Entry]:
    for field, body in _fields(command):
        if field == _REDELIVER and isinstance(body, bytes):
            for inner, message_id in _fields(body):
                if inner == 2 and isinstance(message_id, bytes):
                    place = dict(_fields(message_id))
                    yield int(place[1]), int(place[2])


async def _relay_frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relay the client's data, frame by frame."""
    while True:
        size = await reader.readexactly(4)
        frame = await reader.readexactly(int.from_bytes(size, "big"))
        command = frame[4 : 4 + int.from_bytes(frame[:4], "big")]
        if command[:2] == bytes((1 << 3, _REDELIVER)):
            _seen.append((time.monotonic(), command))
        writer.write(size + frame)
        await writer.drain()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def _serve(port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", port)
        both = (_relay_frames(reader, broker_writer), _relay(broker_reader, writer))
        tasks = [asyncio.ensure_future(each) for each in both]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for each in (writer, broker_writer):
            each.close()
        with contextlib.suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.buffer.read)
    sys.stdout.buffer.write(pickle.dumps(_seen))
    sys.stdout.flush()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
