"""Where to, as callers and the command line say it."""

from datetime import UTC, datetime, timedelta, timezone

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.admin.position import Position
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.seeking.target import target_of, target_text

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ("earliest", "earliest"),
        ("Latest", "latest"),
        ("90s", NOW - timedelta(seconds=90)),
        ("7d", NOW - timedelta(days=7)),
        (timedelta(hours=1), NOW - timedelta(hours=1)),
        ("2026-02-28T10:00:00Z", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28 10:00", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T10:00+02:00", datetime(2026, 2, 28, 8, tzinfo=UTC)),
        (
            datetime(2026, 2, 28, 10, tzinfo=timezone(timedelta(hours=2))),
            datetime(2026, 2, 28, 8, tzinfo=UTC),
        ),
        ("12:3", Position(12, 3)),
        ("12:3:1:4", Position(12, 3, 1, 4)),
        ("(12,3,-1,-1)", Position(12, 3)),
        (Position(12, 3), Position(12, 3)),
        (pulsar.MessageId(1, 12, 3, -1), Position(12, 3, 1)),
    ],
)
def test_accepted(to, target):
    """Every spelling of the documentation is read."""
    assert target == target_of(to, NOW)


@pytest.mark.parametrize(
    "to",
    [
        None,
        7,
        "",
        "tomorrow",
        "12",
        "5x",
        "1969-01-01T00:00Z",
        datetime(2026, 1, 1),  # noqa: DTZ001 - what is to be refused
        timedelta(days=999_999_999),
        timedelta(hours=-1),
        "99999999999999999999d",
        "0001-01-01T00:00+12:00",
    ],
)
def test_refused(to):
    """Anything else is refused by the argument's name, before anything is opened."""
    with pytest.raises(ConfigError, match="to="):
        target_of(to, NOW)


@given(st.text())
def test_any_text_is_a_target_or_refused(text):
    """No text breaks the command line."""
    try:
        target = target_of(text, NOW)
    except ConfigError:
        return

    assert target in {"earliest", "latest"} or isinstance(target, datetime | Position)


def test_shown():
    """A target is shown as a user would write it."""
    assert ["earliest", "2026-03-01T12:00:00.000+00:00", "1:2:-1"] == [
        target_text(each) for each in ("earliest", NOW, Position(1, 2))
    ]
