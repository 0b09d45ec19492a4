"""HTTP/1.1 responses, in pieces of any size."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.push.endpoint import PushEndpoint
from pulsar_retry.push.http import (
    LONGEST_HEAD,
    MOST_OF_A_BODY,
    Answer,
    BrokenError,
    Connection,
    seconds_to_wait,
)

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
FINAL = b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno"

pieces = st.lists(st.integers(1, 30), min_size=1, max_size=60)


class Transport:
    """A transport that sends nothing, and is closed at the end."""

    is_closed = False

    def write(self, _data: bytes) -> None:
        """Send nothing."""

    def abort(self) -> None:
        """Close it."""
        self.is_closed = True

    def is_closing(self) -> bool:
        """Tell whether it is closed."""
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        """Return what is still unsent: nothing."""
        return 0

    def get_extra_info(self, _name: str) -> None:
        """Return nothing: there is no socket."""


def connection() -> Connection:
    """Return a connection to nowhere."""
    made, transport = Connection(PushEndpoint.of("https://example.com/")), Transport()
    made.connection_made(transport)  # type: ignore[arg-type]  # one of asyncio's has more methods
    return made


def run(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Run *coroutine* without a look at sockets."""
    return _loop.run_until_complete(coroutine)


_loop = asyncio.new_event_loop()


def replied(data: bytes, sizes: list[int]) -> Answer:
    """Return what a request is answered if a server says *data* in pieces, and then closes."""
    ours = connection()

    async def ask() -> Answer:
        asking = asyncio.ensure_future(ours.post(b"{}", []))
        await asyncio.sleep(0)
        at = number = 0
        while at < len(data) and not ours.transport.is_closing():
            size = sizes[number % len(sizes)]
            ours.data_received(data[at : at + size])
            at, number = at + size, number + 1
        ours.eof_received()
        return await asking

    return run(ask())


@given(pieces, st.integers(1, 3))
def test_processing_alone(sizes, count):
    """The last interim response stands, if nothing follows."""
    assert 102 == replied(EARLY + INTERIM * count, sizes).status


@given(pieces)
def test_processing_before_an_answer(sizes):
    """Then the answer counts."""
    assert Answer(500, body=b"no") == replied(INTERIM + FINAL, sizes)


@given(pieces, st.integers(1, len(EARLY) - 1))
def test_processing_before_a_part_of_another_one(sizes, length):
    """What breaks off is no whole answer."""
    with pytest.raises(BrokenError):
        replied(INTERIM + EARLY[:length], sizes)


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
    endless = b"HTTP/1.1 102 P\r\nX: " + b"x" * 10 * LONGEST_HEAD
    with pytest.raises(BrokenError):
        replied(endless, [4096])


def test_a_body_without_end():
    """Of it the first 64 KiB are kept, and no more is read."""
    head = b"HTTP/1.1 500 Oh\r\n\r\n"
    assert Answer(500, body=b"x" * MOST_OF_A_BODY) == replied(
        head + b"x" * 10 * MOST_OF_A_BODY, [4096]
    )


def test_what_nobody_has_asked_for_ends_the_connection():
    """Whether it comes before the request, or after the answer."""
    ours = connection()
    ours.data_received(FINAL)
    assert (True, False) == (ours.transport.is_closing(), ours.is_fit())
    with pytest.raises(BrokenError):
        run(ours.post(b"{}", []))


NOW = 1_700_000_000.0  # 14 November 2023, 22:13:20 UTC


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        ("0.5", 0.5),
        ("601", 600),
        ("9" * 400, 600),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", 30),
        ("Tue Nov 14 22:13:50 2023", 30),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0),
        ("Wed, 14 Nov 2029 22:13:10 GMT", 600),
        *(
            (text, 0)
            for text in ("", "-1", "soon", "1e3", "nan", "٣", "Tue, 99 Nov 2023 1:1:1 GMT")
        ),
    ],
)
def test_seconds_to_wait(text, seconds):
    """Seconds, or a date in each of HTTP's forms; never more than 600 s, and 0 for nonsense."""
    assert seconds == seconds_to_wait(text, NOW)


@given(st.text())
def test_seconds_to_wait_of_anything(text):
    """It never fails."""
    assert 0 <= seconds_to_wait(text, NOW) <= 600


@pytest.mark.parametrize("status", [200, 307, 429, 500, 503])
def test_what_an_answer_asks_for(status):
    """A redirect says where it leads, 429 and 503 when to come again."""
    head = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nLocation: /x\r\nretry-AFTER: 7\r\n\r\n" % status
    found = replied(head, [1000])
    asked = {307: ("/x", 0.0), 429: ("", 7.0), 503: ("", 7.0)}.get(status, ("", 0.0))
    assert (status, *asked) == (found.status, found.location, found.retry_after)
