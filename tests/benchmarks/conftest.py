"""How benchmarks report: a table at the end of each, also when output is captured.

`--write-performance` writes the tables into docs/performance.md, too. A ratio below its floor ends
the run with 1.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from figures import Result, places, table, written

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
MEASURED = pytest.StashKey[dict[str, tuple[list[Result], dict[str, object]]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have `--write-performance`."""
    parser.addoption(
        "--write-performance",
        action="store_true",
        help="write the tables into docs/performance.md",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing, and remember how busy the machine was before."""
    load = f"{os.getloadavg()[0]:.1f}"
    notes: dict[str, object] = {
        "processors": os.cpu_count(),
        "load before": load,
        "Python": platform.python_version(),
        "pulsar-client": version("pulsar-client"),
    }
    config.stash[MEASURED] = {"machine": ([], notes)}


@pytest.fixture
def report(benchmark, capsys, request) -> Iterator[None]:
    """Print what was measured, which is in the benchmark's `extra_info`."""
    yield
    notes = dict(benchmark.extra_info)
    results = [Result(**each) for each in notes.pop("results", [])]
    request.config.stash[MEASURED][request.node.nodeid.rpartition("/")[2]] = results, notes
    with capsys.disabled():
        print(f"\n{request.node.name}")  # noqa: T201
        for result in results:
            print(f"  {result.line()}")  # noqa: T201
        for name, note in notes.items():
            print(f"  {name:44} {note}")  # noqa: T201


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the tables, and fail where a floor is not reached."""
    measured = session.config.stash[MEASURED]
    if session.config.getoption("--write-performance"):
        page = PAGE.read_text("utf-8")
        tables = {name: table(*figures) for name, figures in measured.items()}
        PAGE.write_text(written(page, tables), "utf-8")
        for name in sorted(set(tables) - set(places(page))):
            print(f"\n{PAGE.name} has no place for {name}")  # noqa: T201
    low = [(name, each) for name, (all_, _) in measured.items() for each in all_ if each.is_low]
    for name, each in low:
        print(f"\n{name}: {each.name} has {each.ratio:.2f}, not {each.floor:.2f}")  # noqa: T201
    if low and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
