"""A bookie's journal, as BookKeeper writes it and as its replay reads it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = [
    "FENCE",
    "HEADER",
    "LAC",
    "LEDGER_KEY",
    "PADDING",
    "entry_record",
    "padding",
    "record",
    "replayed",
    "tear",
    "torn_data",
    "torn_ids",
    "torn_padding",
]

HEADER = b"BKLG\0\0\0\6".ljust(512, b"\0")
PADDING = -0x100
LEDGER_KEY, FENCE, LAC = -0x1000, -0x2000, -0x8000


def entry_record(ledger: int, entry: int, data: bytes) -> bytes:
    """Return an entry of a ledger."""
    head = struct.pack(">qqqq", ledger, entry, entry - 1, len(data))
    return _with_length(head + zlib.crc32(head + data).to_bytes(8, "big") + data)


def record(ledger: int, kind: int, content: bytes = b"") -> bytes:
    """Return a record that the bookie writes about itself."""
    length = len(content).to_bytes(4, "big") if content else b""
    return _with_length(struct.pack(">qq", ledger, kind) + length + content)


def padding(at: int) -> bytes:
    """Return the padding that is written at *at* if a flush follows."""
    short = -at % 512
    if short == 0:
        return b""
    size = short - 8 if short >= 8 else 512 + short - 8
    return struct.pack(">ii", PADDING, size) + bytes(size)


def replayed(journal: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each record with its position, as the bookie's `scanJournal` does.

    Raises:
        ValueError: The bookie would not start.
    """
    at = len(HEADER)
    while length := _int(journal, at):
        if length == PADDING:
            at += 8 + _int(journal, at + 4)
            continue
        if length < 0:
            raise ValueError(f"Invalid record found with negative length {length}")
        whole = journal[at : at + 4 + length]
        if len(whole) < 4 + length:
            return
        yield at, whole
        at += 4 + length


def torn_data(entry: bytes) -> bytes:
    """Return an entry that ends at the end of a page, as the kernel leaves it."""
    return entry[:4096]


def torn_ids(entry: bytes) -> bytes:
    """Return an entry whose entry number was not written, so that it is 0."""
    return entry[:12]


def torn_padding(_: bytes) -> bytes:
    """Return the first half of a padding mark: a length with which the bookie does not start."""
    return PADDING.to_bytes(4, "big", signed=True)[:2]


def tear(folder: Path, torn: Callable[[bytes], bytes]) -> tuple[Path, int]:
    """Add a torn entry to a killed bookie's journal, as a kill during a write leaves it.

    Args:
        folder: The journal's folder; the journal has an entry of 10 KB or more.
        torn: Cuts the entry.

    Returns:
        The file, and the position in it where the entry begins.
    """
    file = max(folder.glob("current/*.txn"), key=lambda each: int(each.stem, 16))
    content = file.read_bytes()
    end = _flushed(content)
    found = [each for at, each in replayed(content) if at < end]
    last = next(each for each in reversed(found) if len(each) > 10_000)
    ledger, entry = struct.unpack_from(">qq", last, 4)
    with file.open("r+b") as opened:
        opened.truncate(end)
        opened.seek(end)
        opened.write(torn(entry_record(ledger, entry + 1, last[44:])))
        opened.truncate(len(content))
    return file, end


def _flushed(journal: bytes) -> int:
    """Return the end of the last complete flush.

    On a busy machine, a kill may have torn what follows it; another bookie had acknowledged that.
    """
    at = end = len(HEADER)
    while (length := _int(journal, at)) > 0 or length == PADDING:
        at += 8 + _int(journal, at + 4) if length == PADDING else 4 + length
        if length == PADDING or at % 512 == 0:
            end = at
    return end


def _with_length(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def _int(journal: bytes, at: int) -> int:
    piece = journal[at : at + 4]
    return int.from_bytes(piece, "big", signed=True) if len(piece) == 4 else 0
