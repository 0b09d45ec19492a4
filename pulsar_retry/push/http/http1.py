"""HTTP/1.1 with h11: requests, responses, and interim responses that are meant as final."""

from __future__ import annotations

import h11

from pulsar_retry.push.http.connection import (
    CHUNK,
    LONGEST_HEAD,
    MOST_OF_A_BODY,
    Headers,
    HttpConnection,
    HttpReply,
)
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.stream import BrokenError, Stream

_PROCESSING = 102
#: Neither is allowed in an interim response (RFC 9110, 8.6; RFC 9112, 6.1).
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_VERSION = b"HTTP/1."


class Http1(HttpConnection):
    """A connection that speaks HTTP/1.1."""

    def __init__(self, stream: Stream, endpoint: PushEndpoint) -> None:
        """Make a connection; nothing is sent yet."""
        super().__init__(stream)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._target = endpoint.target
        self._host = (b"Host", endpoint.authority.encode("idna"))

    async def post(self, body: bytes, headers: Headers) -> HttpReply:
        """Post *body*; see `HttpConnection.post`.

        102 is returned as the final status in two cases: the server closes the connection after it,
        or it has headers that only a final response may have.
        """
        self._is_clean = self.has_answered = False
        try:
            self._send(body, headers)
            return await self._receive()
        except h11.ProtocolError as error:
            raise BrokenError(str(error)) from error

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
                data = await self.stream.read(CHUNK)
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
