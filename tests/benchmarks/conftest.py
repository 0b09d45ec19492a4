"""How benchmarks report: a table at the end of each, also when output is captured.

`--write-performance` writes the tables into README.md beside this file. A ratio below its floor
ends the run with 1.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from pulsar_retry.standalone import Standalone
from pulsar_retry.testing.broker import RunningBroker, running_broker
from support.benchmarks.figures import Figures, unplaced, written

PAGE = Path(__file__).parent / "README.md"
MEASURED = pytest.StashKey[dict[str, Figures]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have `--write-performance`."""
    parser.addoption(
        "--write-performance",
        action="store_true",
        help="write the tables of tests/benchmarks/README.md",
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
    config.stash[MEASURED] = {"machine": Figures(notes=notes)}


@pytest.fixture(scope="session")
def broker() -> Iterator[RunningBroker]:
    """Give a broker with a server's JVM: with another one, the broker would be what is measured.

    A broker that `PULSAR_SERVICE_URL` names is used as it is.
    """
    if os.environ.get("PULSAR_SERVICE_URL"):
        with running_broker() as found:
            yield found
        return
    options = ["-XX:+UseParallelGC", "-Xms1g"]
    with Standalone(heap="1g", direct_memory="1g", java_options=options) as started:
        yield RunningBroker("standalone", started.service_url, started.admin_url)


@pytest.fixture
def report(benchmark, capsys, request) -> Iterator[None]:
    """Print what was measured, which is in the benchmark's `extra_info`."""
    yield
    figures = Figures.taken(benchmark.extra_info)
    request.config.stash[MEASURED][request.node.nodeid.rpartition("/")[2]] = figures
    with capsys.disabled():
        print(f"\n{request.node.name}")
        for line in figures.lines():
            print(f"  {line}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the tables, and fail where a floor is not reached."""
    measured = session.config.stash[MEASURED]
    if session.config.getoption("--write-performance"):
        write(measured)
    missed = [f"{name}: {text}" for name, each in measured.items() for text in each.missed()]
    for text in missed:
        print(f"\n{text}")
    if missed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def write(measured: dict[str, Figures]) -> None:
    """Write what was measured to where the page has it."""
    page = PAGE.read_text("utf-8")
    PAGE.write_text(written(page, {name: each.table() for name, each in measured.items()}), "utf-8")
    for name in unplaced(page, measured):
        print(f"\n{PAGE.name} has no place for {name}")
