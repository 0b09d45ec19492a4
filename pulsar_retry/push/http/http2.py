"""HTTP/2 with h2: one request at a time, whose response may come before its body is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

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

_CODES = h2.settings.SettingCodes
_SETTINGS = {_CODES.ENABLE_PUSH: 0, _CODES.MAX_HEADER_LIST_SIZE: LONGEST_HEAD}
#: RFC 9113: the length of a frame's head, the longest frame by default, and the type of GOAWAY.
_HEAD, _LONGEST_FRAME, _GOAWAY = 9, 16_384, 7
_STATUS = re.compile(rb"[0-9]{3}")


class Frames:
    """Removes GOAWAY frames from the received data.

    h2 accepts nothing after GOAWAY, although the response to an outstanding request may follow it
    (RFC 9113, 6.8): nginx announces the last request of a connection before it answers it.

    Attributes:
        last_stream: The last stream that the server will answer; None if it has not sent GOAWAY.
    """

    def __init__(self) -> None:
        self.last_stream: int | None = None
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Add received data; return the frames that are complete now.

        Raises:
            BrokenError: a frame is too long.
        """
        buffer, others = self._buffer, bytearray()
        buffer += data
        while len(buffer) >= _HEAD:
            length, kind = int.from_bytes(buffer[:3], "big"), buffer[3]
            if length > _LONGEST_FRAME:  # h2 would first wait for the complete frame
                raise BrokenError(
                    "the server sent something that is not HTTP/2, or a frame that is too long"
                )
            if length > len(buffer) - _HEAD:
                break
            if kind == _GOAWAY:
                self.last_stream = int.from_bytes(buffer[_HEAD : _HEAD + 4], "big") & 0x7FFFFFFF
            else:
                others += buffer[: _HEAD + length]
            del buffer[: _HEAD + length]
        return bytes(others)


class Http2(HttpConnection):
    """A connection that speaks HTTP/2."""

    def __init__(self, stream: Stream, endpoint: PushEndpoint) -> None:
        """Make a connection; nothing is sent before the first request."""
        super().__init__(stream)
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_inbound_headers=False,  # only the status of a response is used
        )
        self._http = h2.connection.H2Connection(config)
        self._http.local_settings = h2.settings.Settings(client=True, initial_values=_SETTINGS)
        self._http.initiate_connection()
        self._frames = Frames()
        self._pseudo = (
            (b":method", b"POST"),
            (b":authority", endpoint.authority.encode("idna")),
            (b":scheme", endpoint.scheme.encode()),
            (b":path", endpoint.target),
        )

    async def post(self, body: bytes, headers: Headers) -> HttpReply:
        """Post *body*; see `HttpConnection.post`."""
        self._is_clean = self.has_answered = False
        try:
            stream_id = self._http.get_next_available_stream_id()
            length = (b"content-length", b"%d" % len(body))
            own = [(name.lower(), value) for name, value in headers]
            self._http.send_headers(stream_id, [*self._pseudo, length, *own], end_stream=not body)
            return await self._exchange(stream_id, body)
        except h2.exceptions.H2Error as error:
            raise BrokenError(f"{type(error).__name__}: {error}") from error

    async def _exchange(self, stream_id: int, body: bytes) -> HttpReply:
        """Send the body as flow control allows, and receive the response at the same time.

        A server that has answered may stop accepting the body (RFC 9113, 8.1).
        """
        http, frames = self._http, self._frames
        status, answer, sent, has_ended = 0, bytearray(), 0, False
        while not has_ended and len(answer) <= MOST_OF_A_BODY:
            if frames.last_stream is not None and frames.last_stream < stream_id:
                raise BrokenError("the server accepts no more requests on this connection")
            sent = self._send(stream_id, body, sent)
            self.stream.write(http.data_to_send())
            data = await self.stream.read(CHUNK)
            if not data:
                raise BrokenError("the connection was closed before the response was complete")
            for event in http.receive_data(frames.feed(data)):
                if getattr(event, "stream_id", None) != stream_id or has_ended:
                    continue
                if isinstance(event, h2.events.ResponseReceived):
                    self.has_answered = True
                    status = _status(event.headers)
                elif isinstance(event, h2.events.DataReceived):
                    answer += event.data
                    http.acknowledge_received_data(event.flow_controlled_length, stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    has_ended = True
                elif isinstance(event, h2.events.StreamReset):
                    # Unless the server has refused the request, it may have processed it.
                    self.has_answered |= event.error_code != h2.errors.ErrorCodes.REFUSED_STREAM
                    raise BrokenError(f"the server has reset the request ({event.error_code})")
        self.stream.write(http.data_to_send())  # settings and windows are acknowledged
        self._is_clean = has_ended and sent == len(body) and frames.last_stream is None
        return HttpReply(status, bytes(answer[:MOST_OF_A_BODY]))

    def _send(self, stream_id: int, body: bytes, sent: int) -> int:
        """Send more of *body* after the first *sent* bytes, as far as flow control allows.

        Returns:
            How many bytes have been sent in total.
        """
        http = self._http
        while sent < len(body):
            room = min(http.local_flow_control_window(stream_id), http.max_outbound_frame_size)
            if room <= 0:
                break
            part = body[sent : sent + room]
            sent += len(part)
            http.send_data(stream_id, part, end_stream=sent == len(body))
        return sent


def _status(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the status of a response.

    Raises:
        BrokenError: there is no status, or several, or one that is not three digits.
    """
    found = [value for name, value in headers if name == b":status"]
    if len(found) != 1 or not _STATUS.fullmatch(found[0]):
        raise BrokenError("the response has no status")
    return int(found[0])
