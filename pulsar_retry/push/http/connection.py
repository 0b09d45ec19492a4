"""A connection to an endpoint that speaks HTTP, whichever version."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import attrs

from pulsar_retry.push.http.stream import Stream

#: Bytes of a response's body that are read. More are not needed, and close the connection.
MOST_OF_A_BODY = 64 * 1024
#: Bytes of a response's head; a larger one is an error.
LONGEST_HEAD = 64 * 1024
#: Bytes that are read from the connection at a time.
CHUNK = 64 * 1024

Headers = Sequence[tuple[bytes, bytes]]


@attrs.frozen
class HttpReply:
    """A response.

    Attributes:
        status: The final status.
        body: The body; of a longer one, the first `MOST_OF_A_BODY` bytes.
    """

    status: int
    body: bytes = b""


class HttpConnection(ABC):
    """A connection, for one request at a time. For one event loop.

    Attributes:
        stream: What the bytes are written to and read from.
        was_kept: Whether it has had a request before the one at hand.
        has_answered: Whether the server has answered the one at hand, if only in part.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.was_kept = False
        self.has_answered = False
        #: Whether the last exchange has left the connection as the next one needs it.
        self._is_clean = True
        self._idle_since = 0.0

    @abstractmethod
    async def post(self, body: bytes, headers: Headers) -> HttpReply:
        """Post *body*; the caller keeps the time, and aborts the stream unless `is_fit`.

        Raises:
            BrokenError: there was no whole response.
        """

    def keep(self) -> None:
        """Keep it for another request."""
        self.was_kept = True
        self._idle_since = time.monotonic()

    def is_fit(self, idle: float | None = None) -> bool:
        """Tell whether it can be used again; with *idle*, if it was kept for less than that."""
        if not self._is_clean or self.stream.is_stale or self.stream.is_sending:
            return False
        return idle is None or time.monotonic() - self._idle_since < idle
