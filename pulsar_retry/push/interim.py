"""Interim answers: which 1xx came before, or in place of, an answer. Pure."""

from __future__ import annotations

import re

#: The first line of an interim answer of HTTP/1.1 or 1.0.
_INTERIM = re.compile(rb"HTTP/1\.[01] (1[0-9]{2})[ \r\n]")
_LINE = len(b"HTTP/1.1 102 ")
_END = re.compile(rb"\r?\n\r?\n")
#: No interim answer may have the first two (RFC 9110, 8.6 and RFC 9112, 6.1), and none says how its
#: connection goes on. An answer that has one was meant to be the last: servers write what their
#: application returned.
_FRAMED = re.compile(
    rb"\n(content-length[ \t]*:|transfer-encoding[ \t]*:|connection[ \t]*:[ \t]*keep-alive)",
    re.IGNORECASE,
)
_VERSION = b"HTTP/1."

#: Heads larger than this are left to the client to refuse.
_MOST = 64 * 1024


class InterimWatch:
    """Reads along what a server sends, until an answer begins that is not interim.

    HTTP clients swallow interim answers, so a server whose application has returned 102 seems to
    have said nothing. This remembers the last one.

    Attributes:
        status: The status of the last interim answer; None: there was none.
        is_last: Whether nothing can come after it: it is framed as only a final answer may be.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.is_last = False
        self._buffer = b""
        self._is_over = False

    @property
    def is_alone(self) -> bool:
        """Whether an interim answer came, whole, and no other one after it."""
        return self.is_last or (self.status is not None and not self._buffer and not self._is_over)

    def feed(self, data: bytes) -> None:
        """Take what was received."""
        if self._is_over:
            return
        self._buffer += data
        while self._buffer:
            head = self._buffer[:_LINE]
            match = _INTERIM.match(head)
            if match is None:
                self._is_over = len(head) == _LINE  # it is the answer, or no HTTP
                return
            end = _END.search(self._buffer)
            if end is None:
                self._is_over = len(self._buffer) > _MOST
                return
            self.status = int(match[1])
            whole, self._buffer = self._buffer[: end.end()], self._buffer[end.end() :]
            follows = self._buffer[: len(_VERSION)]
            another = bool(follows) and _VERSION.startswith(follows)
            self.is_last = _FRAMED.search(whole) is not None and not another
            if self.is_last:
                self._is_over = True
                return
