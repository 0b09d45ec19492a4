"""When letters that wait are due."""

from __future__ import annotations

from pulsar_retry.ops.waiting import due_ms


def test_when_a_letter_is_due() -> None:
    """By its delay, or at once if that cannot be read."""
    assert 1_500 == due_ms({"DELAY_TIME": "500"}, 1_000)
    for text in ("", "soon", "-5", "1" * 13, "٣"):
        assert 1_000 == due_ms({"DELAY_TIME": text}, 1_000)
