"""Interim answers, in pieces of any size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.push.interim import InterimWatch

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
FRAMED = b"HTTP/1.1 102 Processing\r\ncontent-LENGTH : 0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
FINAL = b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"

pieces = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def watched(data: bytes, sizes: list[int]) -> InterimWatch:
    """Return a watch that was fed *data* in pieces of those sizes."""
    watch, at, turn = InterimWatch(), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        watch.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    watch.feed(b"")
    return watch


@given(pieces, st.integers(1, 3))
def test_alone(sizes, count):
    """The last interim answer stands, if nothing follows."""
    watch = watched(EARLY + INTERIM * count, sizes)
    assert (102, True, False) == (watch.status, watch.is_alone, watch.is_last)


@given(pieces)
def test_before_an_answer(sizes):
    """Then it does not stand alone."""
    watch = watched(INTERIM + FINAL, sizes)
    assert (102, False) == (watch.status, watch.is_alone)


@given(pieces, st.integers(1, len(EARLY) - 1))
def test_before_a_part_of_another_one(sizes, length):
    """What breaks off is no whole answer."""
    assert not watched(INTERIM + EARLY[:length], sizes).is_alone


def test_framed():
    """An interim answer has no length: one that has was meant as the last."""
    watch = watched(FRAMED, [1000])
    assert (102, True, True) == (watch.status, watch.is_alone, watch.is_last)
    assert not watched(FRAMED + FINAL, [1000]).is_alone


@given(st.binary(max_size=200), pieces)
def test_anything(data, sizes):
    """Nothing that is sent breaks it."""
    watched(data, sizes)
    watched(b"HTTP/1.1 1" + data, sizes)


def test_a_head_without_end():
    """It is not kept beyond 64 KiB."""
    watch = watched(b"HTTP/1.1 102 P\r\nX: " + b"x" * 200_000, [4096])
    assert (None, False) == (watch.status, watch.is_alone)
    assert len(watch._buffer) < 70_000
