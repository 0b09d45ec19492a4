"""A connection to an endpoint that speaks any version of HTTP."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import attrs

from pulsar_retry.push.http.stream import Stream

#: How many bytes of a response's body are read. If there are more, the connection is closed.
MOST_OF_A_BODY = 64 * 1024
#: The longest head of a response, in bytes; a longer one is an error.
LONGEST_HEAD = 64 * 1024
#: How many bytes are read from the connection at a time.
CHUNK = 64 * 1024

Headers = Sequence[tuple[bytes, bytes]]


@attrs.frozen
class HttpReply:
    """A response.

    Attributes:
        status: The final status.
        body: The body; only the first `MOST_OF_A_BODY` bytes of a longer one.
    """

    status: int
    body: bytes = b""


class HttpConnection(ABC):
    """A connection, for one request at a time. For one event loop.

    Attributes:
        stream: The byte stream that it writes to and reads from.
        was_kept: Whether it was used for a request before the current one.
        has_answered: Whether the server has answered the current request, at least in part.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.was_kept = False
        self.has_answered = False
        #: Whether the connection is ready for another request after the last one.
        self._is_clean = True
        self._idle_since = 0.0

    @abstractmethod
    async def post(self, body: bytes, headers: Headers) -> HttpReply:
        """Post *body*; the caller sets the time limit, and aborts the stream unless `is_fit`.

        Raises:
            BrokenError: the response was not complete.
        """

    def keep(self) -> None:
        """Keep the connection for another request."""
        self.was_kept = True
        self._idle_since = time.monotonic()

    def is_fit(self, idle: float | None = None) -> bool:
        """Tell whether it can be used again; with *idle*, if it was idle for less than that."""
        if not self._is_clean or self.stream.is_stale or self.stream.is_sending:
            return False
        return idle is None or time.monotonic() - self._idle_since < idle
