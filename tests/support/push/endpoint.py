"""An HTTP server that acknowledges as quickly as Python can; its argument is a port."""

from __future__ import annotations

import asyncio
import sys


class Acknowledging(asyncio.Protocol):
    """Answers 204 to each request of a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


async def main() -> None:
    """Serve, and print when ready."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Acknowledging, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
