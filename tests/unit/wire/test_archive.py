"""What an archived letter says, and that it becomes again what it was."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.wire.archive import (
    ArchiveNote,
    RestoredLetter,
    archive_of,
    due_ms,
    republished,
)

NOTE = ArchiveNote(
    archived_as="archived", by="ada@desk", at=datetime(2026, 1, 1, tzinfo=UTC), why="old", job="j"
)
NAMES = st.text(min_size=1).filter(lambda name: not name.startswith(("ARCHIVED_", "RESTORED_")))


@given(st.dictionaries(NAMES, st.text()))
def test_a_restored_letter_is_what_it_was(properties) -> None:
    """Whatever its properties are; it only says where it came from, too."""
    archived = NOTE.properties(properties, "persistent://a/b/c-DLQ-partition-3 1:2:3")
    restored = RestoredLetter.of(archived, "archive 5:6:-1", now_ms=0)
    assert restored is not None
    assert ("persistent://a/b/c-DLQ", 0.0) == (restored.topic, restored.delay)
    assert {**properties, "RESTORED_FROM": "archive 5:6:-1"} == restored.properties


def test_who_when_and_why() -> None:
    """An archived letter says it; a note of an earlier archive is replaced."""
    archived = NOTE.properties({"ARCHIVED_BY": "eve", "ARCHIVED_DUE": "7"}, "t 1:2:-1")
    assert {
        "ARCHIVED_FROM": "t 1:2:-1",
        "ARCHIVED_AS": "archived",
        "ARCHIVED_BY": "ada@desk",
        "ARCHIVED_AT": "2026-01-01T00:00:00.000+00:00",
        "ARCHIVED_JOB": "j",
        "ARCHIVED_WHY": "old",
    } == archived


def test_the_rest_of_a_delay() -> None:
    """A letter that waited waits until it was due; one that is overdue does not wait."""
    archived = NOTE.properties({"DELAY_TIME": "9000"}, "t 1:2:-1", due_ms=10_000)
    for now, delay in ((4_000, 6.0), (12_000, 0.0)):
        restored = RestoredLetter.of(archived, "a 1:1:-1", now_ms=now)
        assert restored is not None
        assert (delay, str(round(delay * 1000))) == (
            restored.delay,
            restored.properties["DELAY_TIME"],
        )


def test_what_is_no_archived_letter() -> None:
    """It cannot be restored."""
    assert RestoredLetter.of({}, "a 1:1:-1", now_ms=0) is None


def test_when_a_letter_is_due() -> None:
    """By its delay, or at once if that cannot be read."""
    assert 1_500 == due_ms({"DELAY_TIME": "500"}, 1_000)
    for text in ("", "soon", "-5", "1" * 13, "٣"):
        assert 1_000 == due_ms({"DELAY_TIME": text}, 1_000)


def test_a_letter_that_is_published_again() -> None:
    """It keeps its attempts, and names the earlier letter."""
    found = republished({"RECONSUMETIMES": "3", "DELAY_TIME": "9"}, "t 1:2:-1", 1.5)
    assert {"RECONSUMETIMES": "3", "DELAY_TIME": "1500", "REPUBLISHED_FROM": "t 1:2:-1"} == found


def test_the_name_of_an_archive() -> None:
    """All partitions share one."""
    assert "persistent://a/b/c-DLQ-ARCHIVE" == archive_of("persistent://a/b/c-DLQ-partition-2")
