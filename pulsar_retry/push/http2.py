"""HTTP/2, for one request at a time: an answer may come before the body is sent."""

from __future__ import annotations

import contextlib

import h2.events
import httpcore2


class _AnsweredError(Exception):
    """The server has answered, and waits for no more of the body."""


class Http2Connection(httpcore2.AsyncHTTP2Connection):
    """What httpcore2 speaks, but that it waits for a window to send in, whatever the server says.

    A server that has answered gives it none (RFC 9113, 8.1).
    """

    _is_cut_short = False

    async def _send_request_body(self, request: httpcore2.Request, stream_id: int) -> None:
        """Send it, or as much of it as the server reads before it answers."""
        with contextlib.suppress(_AnsweredError):
            await super()._send_request_body(request, stream_id)

    async def _receive_events(
        self, request: httpcore2.Request, stream_id: int | None = None
    ) -> None:
        """Receive some; without a stream, which is while a window is waited for, until an end."""
        await super()._receive_events(request, stream_id)
        ends = (h2.events.StreamEnded, h2.events.StreamReset)
        if stream_id is None and any(
            isinstance(event, ends) for events in self._events.values() for event in events
        ):
            self._is_cut_short = True
            raise _AnsweredError

    def is_idle(self) -> bool:
        """Return whether it can take a request: not where the server may still wait for a body."""
        return super().is_idle() and not self._is_cut_short
