"""HTTP/1.1 with h11: requests, responses, and interim responses that are meant as final."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import h11

from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.stream import BrokenError, Stream

#: How many bytes of a response's body are read. If there are more, the connection is closed.
MOST_OF_A_BODY = 64 * 1024
#: The longest head of a response, in bytes; a longer one is an error.
LONGEST_HEAD = 64 * 1024
#: How many bytes are read from the connection at a time.
_CHUNK = 64 * 1024

_PROCESSING = 102
#: Neither is allowed in an interim response (RFC 9110, 8.6; RFC 9112, 6.1).
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_VERSION = b"HTTP/1."

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


class HttpConnection:
    """A connection that speaks HTTP/1.1, for one request at a time. For one event loop.

    Attributes:
        stream: The byte stream that it writes to and reads from.
        was_kept: Whether it was used for a request before the current one.
        has_answered: Whether the server has answered the current request, at least in part.
    """

    def __init__(self, stream: Stream, endpoint: PushEndpoint) -> None:
        """Make a connection; nothing is sent yet."""
        self.stream = stream
        self.was_kept = False
        self.has_answered = False
        #: Whether the connection is ready for another request after the last one.
        self._is_clean = True
        self._idle_since = 0.0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._target = endpoint.target
        self._host = (b"Host", endpoint.authority.encode("idna"))

    async def post(self, body: bytes, headers: Headers) -> HttpReply:
        """Post *body*; the caller sets the time limit, and aborts the stream unless `is_fit`.

        102 is returned as the final status in two cases: the server closes the connection after it,
        or it has headers that only a final response may have.

        Raises:
            BrokenError: the response was not complete.
        """
        self._is_clean = self.has_answered = False
        try:
            self._send(body, headers)
            return await self._receive()
        except h11.ProtocolError as error:
            raise BrokenError(str(error)) from error

    def keep(self) -> None:
        """Keep the connection for another request."""
        self.was_kept = True
        self._idle_since = time.monotonic()

    def is_fit(self, idle: float | None = None) -> bool:
        """Tell whether it can be used again; with *idle*, if it was idle for less than that."""
        if not self._is_clean or self.stream.is_stale or self.stream.is_sending:
            return False
        return idle is None or time.monotonic() - self._idle_since < idle

    def _send(self, body: bytes, headers: Headers) -> None:
        """Send the whole request at once: a server that answers early may not read all of it."""
        length = (b"Content-Length", b"%d" % len(body))
        request = h11.Request(
            method=b"POST", target=self._target, headers=[self._host, length, *headers]
        )
        events = (request, h11.Data(body), h11.EndOfMessage())
        self.stream.write(b"".join(self._http.send(each) or b"" for each in events))

    async def _receive(self) -> HttpReply:
        status, body, processing = 0, bytearray(), False
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self.stream.read(_CHUNK)
                if data or status:
                    self.has_answered = True
                    self._http.receive_data(data)
                elif processing and not self._http.trailing_data[0]:
                    return HttpReply(_PROCESSING)
                else:
                    raise BrokenError("the connection was closed without a response")
            elif isinstance(event, h11.InformationalResponse):
                processing = event.status_code == _PROCESSING
                if processing and self._is_framed(event):
                    return HttpReply(_PROCESSING)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_OF_A_BODY:
                    return HttpReply(status, bytes(body[:MOST_OF_A_BODY]))
            else:
                self._end()
                return HttpReply(status, bytes(body))

    def _is_framed(self, interim: h11.InformationalResponse) -> bool:
        """Tell whether an interim response has the headers of a final one, and is the last one.

        Some frameworks write the status of their application in this way. A header ``Connection:
        keep-alive`` is such a sign, too: a true interim response does not have it.
        """
        follows = self._http.trailing_data[0][: len(_VERSION)]
        if follows and _VERSION.startswith(follows):
            return False
        return any(
            name in _FRAMING or (name == b"connection" and value.lower().startswith(b"keep-alive"))
            for name, value in interim.headers
        )

    def _end(self) -> None:
        """Prepare for the next request, if one is possible.

        Bytes after this response must not be taken for the response to the next request.
        """
        http = self._http
        is_done = http.our_state is h11.DONE and http.their_state is h11.DONE
        if is_done and not http.trailing_data[0]:
            http.start_next_cycle()
            self._is_clean = True
