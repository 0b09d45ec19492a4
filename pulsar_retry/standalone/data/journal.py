"""Repairs the end of a bookie's journal after a crash: an incomplete entry is cut off.

A journal file is allocated in advance, full of zeros, and written from its start to its end. If a
bookie is killed while it writes, the last record ends with zeros in place of its data. The length
of the record is there, and the format has no checksum of a record. So at the next start BookKeeper
takes the record as complete and stores the torn entry. Its clients refuse the digest of this entry
for ever, and the topic cannot be loaded any more. A bookie acknowledges only what has been written.
So a torn entry was never acknowledged, and to cut it off loses nothing.

Only the last record of the newest file can be torn, because the bookie writes one file after the
other in one thread, and each start begins a new file.

The format is that of BookKeeper 4.17 (its `JournalChannel`, `Journal`, `BookieImpl`,
`DigestManager`): "BKLG", a version and zeros up to 512 bytes; then records, each with its length in
4 bytes, and padding. A record has a ledger id, an entry id, the last confirmed entry, the ledger's
length, the CRC-32 of everything but itself, and the data. All numbers are big-endian. Records of
the bookie itself have a negative entry id.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import zlib
from pathlib import Path

from pulsar_retry.errors import StandaloneError

__all__ = ["find_tear", "mend"]

_log = logging.getLogger("pulsar_retry")

_HEADER_BYTES = 512
#: The versions with such a header and padding. BookKeeper writes 6.
_HEADS = tuple(b"BKLG" + version.to_bytes(4, "big") for version in (5, 6))
_INT = struct.Struct(">i")
_MARK = struct.Struct(">qq")
#: A special value in place of a record's length; the length of the padding follows.
_PADDING = -0x100
#: The same value when only its first bytes were written. Replay fails on other negative lengths.
_TORN_PADDING = (-0x1000000, -0x10000)
#: The bookie's own records that may be cut off: it writes them again (a ledger's key, before the
#: first entry), or they only save clients a request (the last confirmed entry). A fence must be
#: kept, and is the same when it is torn.
_REPLACEABLE = (-0x1000, -0x8000)
_IDS_BYTES, _ENTRY_HEAD_BYTES = 16, 32
_CRC32_BYTES = 8


def find_tear(journal: bytes | mmap.mmap, start: int = 0) -> int | None:
    """Return the start of the torn record at the end of a journal file; None if there is none.

    Args:
        journal: The file.
        start: Where replay will begin; 0 for the first record.
    """
    if len(journal) < _HEADER_BYTES or journal[:8] not in _HEADS:
        return None
    last, end = _last_record(journal, start or _HEADER_BYTES)
    if last == end or not _is_torn(journal[last + _INT.size : end]):
        return None
    # If data follows it, it was not the last record, so it is not torn.
    return None if journal[end:].strip(b"\0") else last


def mend(journals: Path, ledgers: Path, *, name: str) -> None:
    """Cut off a torn record, so that the bookie can start; nobody else may use the folders.

    It goes from record to record through the part that the bookie will replay, and reads only the
    last record.

    Args:
        journals: The folder of the journal.
        ledgers: The folder of the ledgers.
        name: The name of the bookie for the log: a warning reports what was cut off.

    Raises:
        StandaloneError: The files cannot be read or written.
    """
    try:
        _mend(journals, ledgers, name)
    except (OSError, ValueError) as error:  # the name of a file must be a number
        raise StandaloneError(f"cannot read the journal of {name}: {error}") from error


def _mend(journals: Path, ledgers: Path, name: str) -> None:
    files = {int(file.stem, 16): file for file in journals.glob("current/*.txn")}
    newest = max(files, default=0)
    if not files or files[newest].stat().st_size == 0:
        return
    file = files[newest]
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        tear = find_tear(content, _replay_start(ledgers / "current" / "lastMark", newest))
    if tear is not None:
        os.truncate(file, tear)
        _log.warning(
            "%s was killed while it wrote to %s: its last entry, which was not acknowledged, was "
            "incomplete and has been removed, from byte %d on",
            *(name, file, tear),
        )


def _replay_start(mark: Path, journal: int) -> int:
    """Return where replay will begin in the journal file; 0 for the first record."""
    try:
        number, offset = _MARK.unpack(mark.read_bytes())
    except (OSError, struct.error):  # the bookie also begins with the first record then
        return 0
    return max(offset, 0) if number == journal else 0


def _last_record(journal: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """Return start and end of the last record that replay will read; equal if there is none.

    Padding is only written after complete records, so earlier records cannot be torn.
    """
    last = at
    while at + _INT.size <= len(journal):
        (length,) = _INT.unpack_from(journal, at)
        if length == _PADDING:
            (padding,) = _INT.unpack(journal[at + 4 : at + 8].ljust(4, b"\0"))
            last = at = at + 8 + max(padding, 0)
        elif length in _TORN_PADDING:
            return at, at + _INT.size
        elif length <= 0:
            break
        elif at + _INT.size + length > len(journal):
            return at, at  # replay detects this by itself
        else:
            last, at = at, at + _INT.size + length
    return last, at


def _is_torn(record: bytes) -> bool:
    """Tell whether the end of a record still consists of zeros from the allocation."""
    if not record.endswith(b"\0") and record:
        return False
    entry = int.from_bytes(record[8:_IDS_BYTES], "big", signed=True)
    if entry < 0:
        return entry in _REPLACEABLE
    head, rest = record[:_ENTRY_HEAD_BYTES], record[_ENTRY_HEAD_BYTES:]
    digest = zlib.crc32(rest[_CRC32_BYTES:], zlib.crc32(head)).to_bytes(_CRC32_BYTES, "big")
    return not rest.startswith(digest)
