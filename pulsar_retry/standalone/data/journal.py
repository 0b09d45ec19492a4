"""The end of a bookie's journal after a crash: an entry that was half written is cut away.

A journal file is allocated ahead, full of zeros, and written from its start to its end. A bookie
that is killed while it writes leaves a last record that ends in zeros instead of what was to come.
Its length is there, a checksum of the record is not part of the format, and so BookKeeper takes it
for whole when it starts again: it stores the torn entry, whose digest its clients then refuse for
ever, and the topic can't be loaded any more. A bookie acknowledges what has been written, so nobody
was told that a torn entry is safe, and cutting it away loses nothing.

Only the last record of the newest file can be torn: the bookie writes one file after the other, in
one thread, and each start begins a new file.

The format is that of BookKeeper 4.17 (its `JournalChannel`, `Journal`, `BookieImpl`,
`DigestManager`): "BKLG", a version and zeros up to 512 bytes; then records, each with its length in
4 bytes, and padding. A record is a ledger id, an entry id, the last confirmed entry, the ledger's
length, the digest of all but itself, and the data; all numbers are big-endian. Records of the
bookie itself have a negative entry id.
"""

from __future__ import annotations

import functools
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.config import Setting

__all__ = ["can_judge", "crc32c", "find_tear", "mend"]

_log = logging.getLogger("pulsar_retry")

_HEADER_BYTES = 512
#: The versions with such a header and padding. BookKeeper writes 6.
_HEADS = tuple(b"BKLG" + version.to_bytes(4, "big") for version in (5, 6))
_INT = struct.Struct(">i")
_MARK = struct.Struct(">qq")
#: Stands for a length, and is followed by the length of the padding.
_PADDING = -0x100
#: What its first bytes are with zeros behind them. Replay fails on other negative lengths.
_TORN_PADDING = (-0x1000000, -0x10000)
#: Records of the bookie that it writes again (a ledger's key, before the first entry), or that only
#: spare clients a look (what is confirmed). A fence is neither, and is the same when it is torn.
_REPLACEABLE = (-0x1000, -0x8000)
_IDS_BYTES, _ENTRY_HEAD_BYTES = 16, 32
_CRC32_BYTES, _CRC32C_BYTES = 8, 4
_CRC32C_POLYNOMIAL = 0x82F63B78


def find_tear(journal: bytes | mmap.mmap, start: int = 0) -> int | None:
    """Return where the torn record at the end of a journal file begins; None: there is none.

    Args:
        journal: The file.
        start: Where replay will begin; 0: with the first record.
    """
    if len(journal) < _HEADER_BYTES or journal[:8] not in _HEADS:
        return None
    last, end = _last_record(journal, start or _HEADER_BYTES)
    if last == end or not _is_torn(journal[last + _INT.size : end]):
        return None
    # With something behind it, it was not the last one to be written, and this no tear.
    return None if journal[end:].strip(b"\0") else last


def mend(journals: Path, ledgers: Path, *, name: str) -> None:
    """Cut a torn record away, so that the bookie can start; nobody else may use the folders.

    It walks from record to record over what the bookie is about to replay, and reads only the last.

    Args:
        journals: The folder of its journal.
        ledgers: The folder of its ledgers.
        name: Whose they are, for the log: a warning tells what was cut away.

    Raises:
        StandaloneError: The files can't be read or written.
    """
    try:
        _mend(journals, ledgers, name)
    except (OSError, ValueError) as error:  # a file's name has to be a number
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
            "%s was killed while it wrote to %s: its last entry, which was not acknowledged, "
            "is torn and was cut away, from byte %d on",
            *(name, file, tear),
        )


def can_judge(settings: Mapping[str, Setting]) -> bool:
    """Tell whether a broker with these settings has digests that a torn entry is known by."""
    return settings.get("managedLedgerDigestType", "CRC32C") in ("CRC32C", "CRC32")


def crc32c(parts: Iterable[bytes]) -> int:
    """Return the CRC-32C (Castagnoli) of *parts* together. Slow: 0.1 s a megabyte."""
    table = _crc32c_table()
    crc = 0xFFFFFFFF
    for part in parts:
        for byte in part:
            crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _replay_start(mark: Path, journal: int) -> int:
    """Return where in the journal file replay will begin; 0: with its first record."""
    try:
        number, offset = _MARK.unpack(mark.read_bytes())
    except (OSError, struct.error):  # the bookie, too, begins with the first one then
        return 0
    return max(offset, 0) if number == journal else 0


def _last_record(journal: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """Return begin and end of the last record that replay will read; the same if there is none.

    Padding is only written behind whole records, so it ends the search for what is torn before it.
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
            return at, at  # replay finds that by itself
        else:
            last, at = at, at + _INT.size + length
    return last, at


def _is_torn(record: bytes) -> bool:
    """Tell whether what should be the last bytes of a record are still zeros."""
    if not record.endswith(b"\0") and record:
        return False
    entry = int.from_bytes(record[8:_IDS_BYTES], "big", signed=True)
    if entry < 0:
        return entry in _REPLACEABLE
    head, rest = record[:_ENTRY_HEAD_BYTES], record[_ENTRY_HEAD_BYTES:]
    digest = zlib.crc32(rest[_CRC32_BYTES:], zlib.crc32(head)).to_bytes(_CRC32_BYTES, "big")
    if rest.startswith(digest):
        return False
    digest = crc32c((head, rest[_CRC32C_BYTES:])).to_bytes(_CRC32C_BYTES, "big")
    return not rest.startswith(digest)


@functools.cache
def _crc32c_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_CRC32C_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return tuple(table)
