"""Which letters a filter takes, by id, attempt and text."""

from __future__ import annotations

from datetime import UTC, datetime

from pulsar_retry.replay.filter import Filter

AT = datetime(2026, 1, 1, tzinfo=UTC)


def takes(where: Filter, properties: dict[str, str] | None = None, **more) -> bool:
    """Tell whether *where* takes a letter."""
    return where.matches(properties or {}, None, AT, **more)


def test_ids() -> None:
    """A partition or batch index that says "none" may be left out."""
    assert takes(Filter(ids="12:7"), message_id="12:7:-1")
    assert takes(Filter(ids=("1:1", "12:7:-1:-1")), message_id="12:7:-1")
    assert takes(Filter(ids="12:7:3"), message_id="12:7:3")
    assert not takes(Filter(ids="12:7"), message_id="12:7:3")
    assert not takes(Filter(ids="12:7"), message_id="12:71:-1")


def test_a_search() -> None:
    """In the properties and the payload, which is read only if it must be."""
    found = {"FAILURE_MESSAGE": "Straße gesperrt"}
    assert takes(Filter(search="STRASSE"), found, payload=bytes)
    assert takes(Filter(search=("strasse", "tea")), found, payload=lambda: b"\xff TEA")
    assert not takes(Filter(search=("strasse", "tea")), found, payload=lambda: b"\xff")
    assert takes(Filter(), found, payload=lambda: 1 / 0)


def test_attempts() -> None:
    """The number of the attempt that failed."""
    assert takes(Filter(attempt=(2, 3)), {"FAILURE_ATTEMPT": "3"})
    assert takes(Filter(attempt=3), {"FAILURE_ATTEMPT": "3"})
    assert not takes(Filter(attempt=(2,)), {"FAILURE_ATTEMPT": "3"})
    assert not takes(Filter(attempt=(2,)))
