"""The lines that long verbs write for a log."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pulsar_retry import cli
from pulsar_retry.cli import metrics
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


def test_the_exporter_tells_a_problem_once_a_minute(monkeypatch, caplog) -> None:
    """However often it asks: a topic that it may not read, and a broker that does not answer."""
    asked: list[str] = []

    def ask(_admin: Any, namespace: str, *, left_out: Any) -> list[Any]:
        asked.append(namespace)
        if len(asked) > 6:
            raise KeyboardInterrupt
        if namespace == "shop/gone":
            raise ConnectionError("no answer")
        left_out("shop/orders-DLQ is left out")
        return []

    monkeypatch.setattr(metrics, "letter_topics", ask)
    clock = SimpleNamespace(monotonic=itertools.count().__next__, sleep=lambda _: None)
    monkeypatch.setattr(metrics, "time", clock)
    assert 0 == cli.main(["metrics", "shop/orders", "shop/gone", "--listen", "127.0.0.1:0"])
    assert 7 == len(asked)
    assert 2 == len(caplog.messages)
