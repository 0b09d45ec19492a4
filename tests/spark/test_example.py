"""The pipeline example runs, ends by itself, and accounts for every row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_retry.testing.broker import RunningBroker

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline.py"


@pytest.fixture(scope="module")
def output(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Run the example to its end; return what it printed and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("example")
    process = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), "--output", str(folder / "new")],
        env={**os.environ, "PULSAR_SERVICE_URL": broker.service_url},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout, folder / "new"


def test_every_row_is_accounted_for(output: tuple[str, Path]) -> None:
    """Before the redrive and after it, the sum of what became of the rows is the rows."""
    text, _ = output
    assert "3782 rows read, 92 failed: 15 to retry, 77 dead letters" in text
    assert "3782 rows = 3690 good + 12 mended + 0 redriven and mended + 80 dead" in text
    assert "3782 rows = 3690 good + 12 mended + 15 redriven and mended + 65 dead" in text


@pytest.mark.parametrize(
    ("reason", "rows", "attempts"),
    [
        ("not-an-iata-code", 42, 1),
        ("unknown-make", 17, 1),
        ("missing-mileage", 8, 1),
        ("missing-horsepower", 6, 1),
        ("foreign-country", 4, 1),
        ("missing-city", 3, 3),
    ],
)
def test_dead_letters_by_reason(
    output: tuple[str, Path], reason: str, rows: int, attempts: int
) -> None:
    """Those that no retry can help died at once, the others after their attempts."""
    text, _ = output
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert [reason, str(rows), str(attempts)] in [cells[:3] for cells in lines]


def test_the_chart_needs_nothing_else(output: tuple[str, Path]) -> None:
    """It is one file that names every reason and loads no script from anywhere."""
    _, folder = output
    chart = (folder / "failed.html").read_text(encoding="utf-8")
    for reason in ("impossible-position", "missing-city", "unknown-make"):
        assert reason in chart
    assert '<script src="http' not in chart
