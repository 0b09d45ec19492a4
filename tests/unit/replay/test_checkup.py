"""What `pulsar-retry doctor` concludes from what it has read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pulsar_retry.replay.checkup import keeps_later_waiting

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "stops"),
    [
        ([60, 61, 62], True),
        ([60, 59.5, 60], True),
        ([60, 62, 58], False),
        ([0, 61, 62], False),
        ([60, None, 62], False),
        ([], False),
    ],
    ids=["growing", "within a tick", "one before", "one is due", "one without delay", "none"],
)
def test_the_broker_stops_behind_letters_of_one_delay(seconds, stops):
    """Where each is due in future, and none before the one ahead of it."""
    dues = [None if each is None else NOW + timedelta(seconds=each) for each in seconds]

    assert stops == keeps_later_waiting(dues, NOW)
