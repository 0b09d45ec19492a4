"""The tables of docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.benchmarks.figures import (
    Figures,
    Result,
    Time,
    places,
    written,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text("utf-8")

FAST = Result("fast", (2_000.0, 1_000.4, 3_000.0), 2.0, 1.5, 1.25)


@pytest.fixture
def benchmarks():
    """Return the benchmarks that there are, without parameters."""
    return {
        f"{path.name}::{name}"
        for path in (ROOT / "tests" / "benchmarks").glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }


def test_each_place_is_for_a_benchmark_that_exists(benchmarks):
    """And each benchmark has a place, or what it measured would be lost."""
    named = {name.partition("[")[0] for name in places(PAGE)} - {"machine"}

    assert benchmarks == named


def test_a_table_has_a_row_for_each_contestant():
    """With its ratio; what else was measured comes below."""
    slow = Result("slow", (1_000.0, 900.0, 1_100.0), 1.0, 1.875, 1.0)
    text = Figures((FAST, slow), notes={"size": 3}).table()

    assert (
        "|  | messages | processor time a message |\n"
        "| --- | --- | --- |\n"
        "| `fast` | 2,000/s (1,000-3,000), 2.00 | 1.50 µs, 1.25 |\n"
        "| `slow` | 1,000/s (900-1,100), 1.00 | 1.88 µs, 1.00 |\n"
        "\n"
        "|  | measured |\n"
        "| --- | --- |\n"
        "| size | 3 |\n"
    ) == text


def test_a_table_replaces_what_was_in_its_place():
    """And only there."""
    page = "a\n<!-- figures: one -->\nold\n<!-- end -->\nb\n<!-- figures: two -->\n<!-- end -->\n"

    assert (
        "a\n<!-- figures: one -->\nnew\n<!-- end -->\nb\n<!-- figures: two -->\n<!-- end -->\n"
    ) == written(page, {"one": "new\n", "three": "none\n"})
    assert ["one", "two"] == places(page)


@pytest.mark.parametrize(
    ("ratio", "cpu_ratio", "by_cpu", "low"),
    [
        (0.9, 0.9, False, True),
        (0.9, 1.0, False, False),
        (1.0, 0.9, False, False),
        (1.0, 0.9, True, True),
        (0.9, 0.97, True, False),
    ],
)
def test_a_ratio_is_low_if_rate_and_processor_time_say_so(ratio, cpu_ratio, by_cpu, low):
    """One of them alone may be noise, where not processor time alone is asked for."""
    result = Result("any", (1.0, 1.0, 1.0), ratio, 1.0, cpu_ratio, 0.97, by_cpu)

    assert low == bool(result.missed)
    assert Figures((result,)).missed() == [result.missed] * low


@pytest.mark.parametrize(("ratio", "long"), [(1.2, False), (1.4, True)])
def test_a_time_is_too_long_above_its_ceiling(ratio, long):
    """By time and by processor time."""
    time = Time("any", (1.0, 1.0, 1.0), ratio, 1.0, ratio, 1.3)

    assert long == bool(time.missed)
