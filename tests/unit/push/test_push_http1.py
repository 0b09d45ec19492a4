"""HTTP/1.1 responses, in pieces of any size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.push.http.connection import (
    LONGEST_HEAD,
    MOST_OF_A_BODY,
    HttpConnection,
    HttpReply,
)
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.stream import BrokenError

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
FRAMED = b"HTTP/1.1 102 Processing\r\ncontent-LENGTH:  0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
FINAL = b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno"

pieces = st.lists(st.integers(1, 30), min_size=1, max_size=60)


class Said:
    """A stream of which a server has said something, and then closed it."""

    is_stale = is_sending = False

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.pieces, at = [], 0
        while at < len(data):
            size = sizes[len(self.pieces) % len(sizes)]
            self.pieces.append(data[at : at + size])
            at += size
        self.read_all = False

    def write(self, _data: bytes) -> None:
        """Send nothing."""

    async def read(self, _most: int) -> bytes:
        """Return the next piece."""
        assert not self.read_all, "it was read beyond the end"
        self.read_all = not self.pieces
        return self.pieces.pop(0) if self.pieces else b""


def connection(data: bytes, sizes: list[int]) -> HttpConnection:
    """Return a connection whose server says *data* in pieces of those sizes."""
    stream: Any = Said(data, sizes)
    return HttpConnection(stream, PushEndpoint.of("https://example.com/"))


def replied(data: bytes, sizes: list[int]) -> HttpReply:
    """Return what a request is answered; it never waits."""
    request = connection(data, sizes).post(b"{}", [])
    try:
        request.send(None)
    except StopIteration as ended:
        reply: HttpReply = ended.value
        return reply
    raise AssertionError("it waits")


@given(pieces, st.integers(1, 3))
def test_processing_alone(sizes, count):
    """The last interim response stands, if nothing follows."""
    assert 102 == replied(EARLY + INTERIM * count, sizes).status


@given(pieces)
def test_processing_before_an_answer(sizes):
    """Then the answer counts."""
    assert HttpReply(500, b"no") == replied(INTERIM + FINAL, sizes)


@given(pieces, st.integers(1, len(EARLY) - 1))
def test_processing_before_a_part_of_another_one(sizes, length):
    """What breaks off is no whole answer."""
    with pytest.raises(BrokenError):
        replied(INTERIM + EARLY[:length], sizes)


def test_processing_that_is_framed():
    """An interim response has no length: one that has was meant as the last."""
    assert 102 == replied(FRAMED + b"{}", [1000]).status
    assert 500 == replied(FRAMED + FINAL, [1000]).status


@given(st.binary(max_size=200), pieces)
def test_anything(data, sizes):
    """Whatever is sent, it is an answer or an error."""
    for begin in (b"", b"HTTP/1.1 1", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        try:
            replied(begin + data, sizes)
        except BrokenError:
            continue


def test_a_head_without_end():
    """It is not kept beyond 64 KiB."""
    endless = connection(b"HTTP/1.1 102 P\r\nX: " + b"x" * 10 * LONGEST_HEAD, [4096])
    with pytest.raises(BrokenError):
        endless.post(b"{}", []).send(None)
    left: Any = endless.stream
    assert sum(map(len, left.pieces)) > 8 * LONGEST_HEAD


def test_a_body_without_end():
    """Of it the first 64 KiB are kept, and no more is read."""
    head = b"HTTP/1.1 500 Oh\r\n\r\n"
    assert HttpReply(500, b"x" * MOST_OF_A_BODY) == replied(
        head + b"x" * 10 * MOST_OF_A_BODY, [4096]
    )
