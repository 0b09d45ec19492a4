"""The lines that long verbs write for a log, and exit codes."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import pulsar_retry as pr
from pulsar_retry import cli
from pulsar_retry.cli._common import output, redriving
from pulsar_retry.replay.redriving.report import Redriven


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--fails", is_flag=True)
@click.option("--fails-at-once", is_flag=True)
def moves(*, as_json: bool, fails: bool, fails_at_once: bool) -> None:
    """Move three letters."""
    with output.progress("moved", "a topic") as tell:
        if fails_at_once:
            raise pr.RedriveError("no")
        tell(1, 3)
        if fails:
            raise pr.RedriveError("no")
        tell(3, 3)


def lines(*arguments: str, log: str | None = None) -> list[str]:
    """Return what the verb writes to standard error."""
    done: Result = CliRunner().invoke(moves, arguments, env={"PULSAR_RETRY_LOG": log})
    return done.stderr.splitlines()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch) -> None:
    monkeypatch.setattr(output, "_LOG_SECONDS", 0.0)


def test_lines_with_fields() -> None:
    """One at the start, one for each progress, one at the end; values with spaces are quoted."""
    start, first, _, end = lines()
    assert re.fullmatch(r'at=2\S+ event=start verb= what=moved topic="a topic"', start)
    assert re.search(
        r"event=progress .* done=1 total=3 seconds=0\.0 rate=\d+ left_seconds=0$", first
    )
    assert re.search(r"event=end .* result=ok done=3 total=3 ", end)


def test_a_verb_that_fails() -> None:
    """The last line says so, and how far it came."""
    assert re.search(r"event=end .* result=RedriveError done=1 total=3 ", lines("--fails")[2])


def test_a_verb_that_leaves_letters() -> None:
    """The last line does not say that all is well."""
    done = Redriven(source="a-DLQ", job="1", dry_run=False, stopped="cancelled")
    job: Any = SimpleNamespace(source=done.source, run=lambda _tell: done, cancel=int)
    command = click.Command("moves", callback=lambda: redriving._run(job, "redriven", None))
    end = CliRunner().invoke(command, []).stderr.splitlines()[-1]
    assert "result=cancelled" in end


def test_work_that_does_not_begin() -> None:
    """There is only the error, in one line as ever."""
    assert [] == lines("--fails-at-once")


def test_forms() -> None:
    """JSON is one object on each line; with --json nothing is written unless it is asked for."""
    found = [json.loads(each) for each in lines(log="json")]
    assert ["start", "progress", "progress", "end"] == [each["event"] for each in found]
    assert (3, "ok") == (found[-1]["done"], found[-1]["result"])
    assert [] == lines(log="off") == lines("--json")
    assert 4 == len(lines("--json", log="json"))


def test_a_form_that_there_is_not(monkeypatch, capsys) -> None:
    """Wrong usage, before anything is opened."""
    monkeypatch.setenv("PULSAR_RETRY_LOG", "xml")
    arguments = ("redrive", "x-DLQ", "--yes", "--no-audit", "--admin-url", "http://127.0.0.1:1")
    assert 2 == cli.main(arguments)
    assert "PULSAR_RETRY_LOG='xml'" in capsys.readouterr().err
