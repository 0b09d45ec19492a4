"""Numbers over time as bars."""

from __future__ import annotations

from pulsar_retry.console.chart import bars


def test_bars_show_even_one_letter_beside_thousands() -> None:
    """And no bar where nothing has arrived."""
    drawn = bars([0, 1, 5000], 300)
    assert [0.0, 2.0, 100.0] == [each.height for each in drawn.bars]
    assert [0.0, 100.0, 200.0] == [each.x for each in drawn.bars]
    assert (5001, 5000) == (drawn.total, drawn.top)
