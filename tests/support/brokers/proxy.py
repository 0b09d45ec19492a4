"""A TCP proxy before a server that cuts, stalls, slows and resets connections, without privileges.

A standalone Pulsar answers look-ups with the URL that the client has used, so a client of the proxy
keeps using it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_CHUNK = 1 << 16
_GLANCE = 0.05

#: Closing a socket with this resets its connection.
_AT_ONCE = struct.pack("ii", 1, 0)


class Proxy:
    """Passes bytes between clients and one server, until a method stops it. Thread-safe.

    Attributes:
        port: The port for clients.
        delay: Seconds for which each piece of data is held back, in each direction.
    """

    def __init__(self, host: str, port: int) -> None:
        """Start a proxy before the server at *host* and *port*."""
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay = 0.0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._to_server, self._to_client = threading.Event(), threading.Event()
        self._refusing = self._closed = False
        self.mend()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self.mend()
        self._listener.close()
        self._end(reset=False)

    @property
    def url(self) -> str:
        """The service URL, if the server is a broker."""
        return f"pulsar://127.0.0.1:{self.port}"

    def mend(self) -> None:
        """Let all data pass again. Stalled connections continue."""
        self._refusing, self.delay = False, 0.0
        self._to_server.set()
        self._to_client.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Close all connections properly; with *refuse*, accept no new connection until `mend`."""
        self._refusing = refuse
        self._end(reset=False)

    def reset(self) -> None:
        """Reset all connections, like a firewall that has forgotten them."""
        self._end(reset=True)

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Pass no data in one or both directions, and close nothing: connections are half-open."""
        if to_server:
            self._to_server.clear()
        if to_client:
            self._to_client.clear()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            for source, target, may_pass in (
                (client, server, self._to_server),
                (server, client, self._to_client),
            ):
                pump = threading.Thread(
                    target=self._pump, args=(source, target, may_pass), daemon=True
                )
                pump.start()

    def _pump(
        self, source: socket.socket, target: socket.socket, may_pass: threading.Event
    ) -> None:
        """Pass bytes on in one direction, until either end closes or `_end` does."""
        with suppress(OSError):
            # Calls stay short, because a socket is not closed while another thread reads it.
            source.settimeout(_GLANCE)
            while True:
                with suppress(TimeoutError):
                    if not (data := source.recv(_CHUNK)):
                        break
                    time.sleep(self.delay)
                    while not may_pass.wait(_GLANCE):
                        source.getpeername()  # raises if the connection has ended meanwhile
                    while data:  # `sendall` would not tell how much it has sent at its timeout
                        with suppress(TimeoutError):
                            data = data[target.send(data) :]
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _end(self, *, reset: bool) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                with suppress(OSError):
                    if reset:
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    else:
                        each.shutdown(socket.SHUT_RDWR)
                each.close()


#: The faults by name. Some last for a number of seconds. `Proxy.mend` then ends their effects.
BREAKS: dict[str, Callable[[Proxy, float], object]] = {
    "cut": lambda proxy, _: proxy.cut(),
    "refuse": lambda proxy, seconds: (proxy.cut(refuse=True), time.sleep(seconds)),
    "reset": lambda proxy, _: proxy.reset(),
    "half-open": lambda proxy, seconds: (proxy.stall(), time.sleep(seconds)),
    "no data to client": lambda proxy, seconds: (
        proxy.stall(to_server=False),
        time.sleep(seconds),
        proxy.reset(),
    ),
    "no data to server": lambda proxy, seconds: (
        proxy.stall(to_client=False),
        time.sleep(seconds),
        proxy.reset(),
    ),
}
