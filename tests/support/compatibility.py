"""The table of docs/compatibility.md: with what each environment of tox was run. A pytest plugin.

``tox run -e NAME -- --write-compatibility`` replaces the row of the environment NAME.
"""

from __future__ import annotations

import json
import os
import platform
import re
import urllib.request
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs
import pulsar
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"

#: The table, between these two lines.
_TABLE = re.compile(r"(<!-- runs: begin -->\n(?:\|.*\n){2})((?:\|.*\n)*)(<!-- runs: end -->)")

#: Set by tox.
_ENVIRONMENT = "TOX_ENV_NAME"


@attrs.frozen
class Run:
    """One run of an environment.

    Attributes:
        environment: Its name.
        broker: Pulsar's version, or ``-`` if no test needed a broker.
        client: pulsar-client's version.
        python: Python's version.
        spark: PySpark's version, or ``-``.
        passed: How many tests passed.
        skipped: How many were skipped.
        failed: How many failed.
        day: When.
    """

    environment: str
    broker: str
    client: str
    python: str
    spark: str
    passed: int
    skipped: int
    failed: int
    day: str

    @property
    def line(self) -> str:
        """The row of the table."""
        result = f"{self.passed} passed"
        result += f", {self.skipped} skipped" * (self.skipped > 0)
        result += f", **{self.failed} failed**" * (self.failed > 0)
        cells = [_named(self.environment), self.broker, self.client, self.python, self.spark]
        return f"| {' | '.join([*cells, result, self.day])} |"


def _named(environment: str) -> str:
    return f"[`{environment}`](../tox.ini)"


def written(page: str, run: Run) -> str:
    """Return *page* with the row of *run* in its table, which is sorted."""
    found = _TABLE.search(page)
    assert found is not None
    head = f"| {_named(run.environment)} |"
    lines = [line for line in found[2].splitlines() if not line.startswith(head)]
    rows = "".join(f"{line}\n" for line in sorted([*lines, run.line]))
    return _TABLE.sub(lambda match: f"{match[1]}{rows}{match[3]}", page)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have `--write-compatibility`."""
    text = "write what this environment of tox was run with into docs/compatibility.md"
    parser.addoption("--write-compatibility", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to write a row for a part of an environment, or for none."""
    if config.getoption("--write-compatibility") and (
        _ENVIRONMENT not in os.environ or config.option.keyword or config.option.markexpr
    ):
        raise pytest.UsageError("--write-compatibility is for whole runs by tox")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the row, while the broker still runs."""
    config = terminalreporter.config
    if not config.getoption("--write-compatibility"):
        return
    counts = {
        name: len(terminalreporter.getreports(name))
        for name in ("passed", "skipped", "failed", "error")
    }
    paths = tuple(each for each in config.args if (ROOT / each.partition("::")[0]).exists())
    run = Run(
        os.environ[_ENVIRONMENT],
        _broker_version(config),
        pulsar.__version__,
        platform.python_version(),
        _spark_version(paths),
        counts["passed"],
        counts["skipped"],
        counts["failed"] + counts["error"],
        datetime.now(UTC).date().isoformat(),
    )
    PAGE.write_text(written(PAGE.read_text("utf-8"), run), "utf-8")


def _broker_version(config: pytest.Config) -> str:
    """Return the version of the run's broker."""
    main = config.pluginmanager.getplugin(str(ROOT / "tests" / "conftest.py"))
    if main.SHARED not in config.stash:
        return "-"
    url = f"{config.stash[main.SHARED].admin_url}/admin/v2/brokers/version"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith('"') else text


def _spark_version(paths: tuple[str, ...]) -> str:
    if not any(each.startswith("tests/spark") for each in paths):
        return "-"
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return "-"
