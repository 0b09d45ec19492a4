"""Depth over time: samples, and the line through them."""

from __future__ import annotations

import pytest

from pulsar_retry.console.chart import chart
from pulsar_retry.console.depth import MOST, Depths
from pulsar_retry.ops.overview import LetterTopic


def topic(name: str, backlog: int) -> LetterTopic:
    """Return a dead-letter topic."""
    return LetterTopic(
        topic=name,
        kind="dead_letter",
        main_topic=None,
        subscription=None,
        backlog=backlog,
        oldest_age_seconds=None,
        rate_in=0.0,
        rate_out=0.0,
        partitions=0,
        subscriptions=(),
        consumers=0,
    )


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


def test_depths_are_kept_for_a_while() -> None:
    """The latest; what is gone is forgotten."""
    found = [topic("a", 1), topic("b", 3)]
    depths = Depths(lambda _namespace: found, ["public/default"])
    for backlog in range(MOST + 2):
        found[0] = topic("a", backlog)
        depths.sample()

    assert [*range(2, MOST + 2)] == [depth for _, depth in depths.of("a")]
    assert {3} == {depth for _, depth in depths.of("b")}
    del found[1]
    depths.sample()
    assert [] == depths.of("b")
