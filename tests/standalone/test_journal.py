"""The end of a bookie's journal after a crash, without a bookie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.data.journal import find_tear, mend
from support.brokers.journals import (
    FENCE,
    HEADER,
    LAC,
    LEDGER_KEY,
    PADDING,
    entry_record,
    padding,
    record,
    replayed,
)

PREALLOCATED = 20_000
KEY = record(5, LEDGER_KEY, b"k" * 20)

ids = st.integers(0, 2**40)
# Zeros are what a torn record ends in: they have to stand in whole ones, too.
contents = st.binary(max_size=300).flatmap(lambda data: st.sampled_from([data, data + bytes(9)]))
records = st.one_of(
    st.builds(entry_record, ids, ids, contents),
    st.builds(lambda ledger: record(ledger, FENCE), ids),
    st.builds(lambda ledger, key: record(ledger, LEDGER_KEY, key), ids, st.binary(min_size=20)),
    st.builds(lambda ledger, lac: record(ledger, LAC, lac), ids, st.binary(min_size=20)),
)


def written(flushes: Sequence[Sequence[bytes]]) -> bytes:
    """Return a journal file up to the last byte that is written, with padding after each flush."""
    content = HEADER
    for flush in flushes:
        content += b"".join(flush)
        content += padding(len(content))
    return content


def is_bookies(each: bytes, *kinds: int) -> bool:
    """Tell whether it is a record of the bookie itself, of one of *kinds* if any are given."""
    (kind,) = struct.unpack_from(">q", each, 12)
    return kind in kinds if kinds else kind < 0


@given(
    st.lists(st.lists(records, min_size=1, max_size=4), min_size=1, max_size=4),
    st.data(),
    st.booleans(),
)
def test_whatever_a_kill_left_is_replayed_up_to_what_is_torn(
    flushes: list[list[bytes]], data: st.DataObject, zeros: bool
) -> None:
    """All that was written whole stays, nothing else is believed, and the bookie starts."""
    full = written(flushes)
    check(full, data.draw(st.integers(len(HEADER), len(full)), "cut"), zeros=zeros)


@pytest.mark.parametrize("zeros", [True, False])
def test_every_byte_of_a_journal_may_be_the_last(zeros: bool) -> None:
    """Lengths, ids, padding and all: there is no byte after which the bookie fails."""
    entries = [entry_record(2**20 + 5, 2**30 + n, b"x" * 400) for n in range(3)]
    zero = record(6, LEDGER_KEY, bytes(20))
    full = written(
        [[KEY, entries[0]], [zero, *entries[1:]], [record(5, FENCE), record(5, LAC, b"l" * 32)]]
    )
    for cut in range(len(HEADER), len(full) + 1):
        check(full, cut, zeros=zeros)


def is_spare(each: bytes) -> bool:
    """Tell whether it may be taken for torn when it is whole: the bookie can do without it."""
    return each.endswith(b"\0") and is_bookies(each, LEDGER_KEY, LAC)


def check(full: bytes, cut: int, *, zeros: bool) -> None:
    """Check what is replayed when a journal was written up to *cut*."""
    left = full[:cut] + bytes(PREALLOCATED if zeros else 0)
    tear = find_tear(left)
    mended = left if tear is None else left[:tear]
    # A record of whose bytes only zeros are missing is there as a whole.
    whole = [each for at, each in replayed(full) if left[at:].startswith(each)]
    found = [each for _, each in replayed(mended)]
    lost, added = whole[len(found) :], found[len(whole) :]
    assert found[: len(whole)] == whole[: len(found)]
    assert len(lost) <= 1
    assert all(map(is_spare, lost))
    # Replay passes over an unknown record of the bookie's.
    assert all(is_bookies(each) and not is_bookies(each, LEDGER_KEY, LAC, FENCE) for each in added)
    # A start after this one loses no more than that.
    again = find_tear(mended)
    assert again is None or (mended[again:] == found[-1] and is_spare(found[-1]))


@pytest.mark.parametrize("missing", [1, 4, 200, 300 - 1])
def test_a_torn_entry_is_found(missing: int) -> None:
    """It begins with its length, whether it is the first record or a later one."""
    entry = entry_record(5, 7, b"x" * 250)
    for before in (written([[]]), written([[KEY, entry], [entry]]), written([[entry]]) + entry):
        torn = before + entry[:-missing]
        assert find_tear(torn + bytes(PREALLOCATED)) == (
            len(before) if len(entry) > missing + 3 else None
        )


def test_what_is_no_tear_is_left_alone() -> None:
    """Other formats, an empty file, something behind the end, and a length that is no length."""
    entry = entry_record(5, 7, b"x" * 250)
    torn = written([[entry]]) + entry[:100] + bytes(PREALLOCATED)
    assert find_tear(torn) is not None
    assert find_tear(b"") is None
    assert find_tear(HEADER[:100]) is None
    assert find_tear(b"BKLG\0\0\0\4" + torn[8:]) is None
    assert find_tear(b"else" + torn[4:]) is None
    assert find_tear(torn + b"more") is None
    for wrong in (struct.pack(">i", -5), struct.pack(">ii", PADDING, -8)):
        assert find_tear(written([[entry]]) + wrong + bytes(PREALLOCATED)) is None


def test_only_what_is_replayed_is_looked_at() -> None:
    """A search that starts behind the last record finds nothing."""
    entry = entry_record(5, 7, b"x" * 250)
    before = written([[entry]])
    torn = before + entry[:100] + bytes(PREALLOCATED)
    assert find_tear(torn, len(before)) == len(before)
    assert find_tear(torn, len(before) + 4 + len(entry)) is None
    assert find_tear(torn, len(torn) + 4) is None


class Folders:
    """A journal of two files, the newer one torn."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "current").mkdir(parents=True)
        entry = entry_record(5, 7, b"x" * 250)
        self.whole = written([[entry]])
        self.torn = self.whole + entry[:100] + bytes(PREALLOCATED)
        # As text, the older name is the later one.
        self.older, self.newer = root / "current" / "ff.txn", root / "current" / "100.txn"
        self.older.write_bytes(self.torn)
        self.newer.write_bytes(self.torn)

    def mark(self, *content: int) -> None:
        """Write from where on the journal is replayed."""
        (self.root / "current" / "lastMark").write_bytes(struct.pack(">qq", *content))

    def mend(self) -> None:
        """Mend it."""
        mend(self.root, self.root, name="the broker")


@pytest.mark.parametrize(
    "mark", [None, (0, 0), (0xFF, 10**6), (0x100, 512), (0x100, 0), (0x100, -1)]
)
def test_the_newest_file_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mark: tuple[int, int] | None
) -> None:
    """It is cut, once, and a warning says so; the older one was replayed before."""
    folders = Folders(tmp_path)
    if mark:
        folders.mark(*mark)
    for _ in range(2):
        folders.mend()
    assert folders.newer.read_bytes() == folders.whole
    assert folders.older.read_bytes() == folders.torn
    [message] = caplog.messages
    assert str(folders.newer) in message
    assert f"from byte {len(folders.whole)} on" in message


def test_what_is_not_replayed_is_not_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bookie's mark of what it has stored is where the search begins."""
    folders = Folders(tmp_path)
    folders.mark(0x100, len(folders.torn))
    folders.mend()
    assert folders.newer.read_bytes() == folders.torn
    assert not caplog.messages


def test_a_bookie_without_a_journal_needs_none(tmp_path: Path) -> None:
    """Neither a new folder nor a file that was just made is an error."""
    mend(tmp_path / "new", tmp_path / "new", name="the broker")
    folders = Folders(tmp_path)
    folders.newer.write_bytes(b"")
    folders.mend()
    assert folders.newer.read_bytes() == b""


def test_an_unreadable_journal_is_told(tmp_path: Path) -> None:
    """The error names whose journal it is."""
    folders = Folders(tmp_path)
    folders.newer.unlink()
    folders.newer.mkdir()
    with pytest.raises(StandaloneError, match="journal of the broker"):
        folders.mend()
