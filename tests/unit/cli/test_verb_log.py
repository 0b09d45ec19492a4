"""The lines that long verbs write for a log."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pulsar_retry.cli._common import output


@click.command()
@click.option("--json", "as_json", is_flag=True)
def moves(*, as_json: bool) -> None:
    """Move three letters."""
    with output.progress("moved", "a topic") as tell:
        tell(1, None, "")
        tell(3, 3, "the broker is away")


def lines(*arguments: str) -> list[str]:
    """Return what the verb writes to standard error."""
    return CliRunner().invoke(moves, arguments).stderr.splitlines()


def test_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is done, and the total. With --json there is none."""
    assert [] == lines()
    monkeypatch.setattr(output, "_LOG_SECONDS", 0.0)
    assert ["a topic: 1 moved", "a topic: 3 of 3 moved (the broker is away)"] == lines()
    assert [] == lines("--json")
