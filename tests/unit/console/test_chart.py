"""Numbers over time as lines and bars."""

from __future__ import annotations

import pytest

from pulsar_retry.console.chart import bars, chart


def test_a_line_steps_where_the_depth_changes() -> None:
    """The bottom is no letters, the top the most."""
    line = chart([(100.0, 0), (110.0, 0), (120.0, 4)], 100, 42)
    assert line is not None
    assert "0.0,41.0 50.0,41.0 100.0,41.0 100.0,1.0" == line.points
    assert (0, 4, 20.0) == (line.least, line.most, line.seconds)


@pytest.mark.parametrize("samples", [[], [(1.0, 5)]])
def test_one_sample_is_no_line(samples) -> None:
    """It needs two ends."""
    assert chart(samples, 100, 40) is None


def test_no_letters_are_a_line_at_the_bottom() -> None:
    """Also where two samples have one time."""
    line = chart([(1.0, 0), (1.0, 0)], 100, 42)
    assert line is not None
    assert "0.0,41.0 0.0,41.0" == line.points


def test_bars_show_even_one_letter_beside_thousands() -> None:
    """And no bar where nothing has arrived."""
    drawn = bars([0, 1, 5000], 300)
    assert [0.0, 2.0, 100.0] == [each.height for each in drawn.bars]
    assert [0.0, 100.0, 200.0] == [each.x for each in drawn.bars]
    assert (5001, 5000) == (drawn.total, drawn.top)
