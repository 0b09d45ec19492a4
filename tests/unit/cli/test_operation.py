"""What verbs that change something ask before they do it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_retry import cli
from pulsar_retry.cli._common import operation
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import SAMPLE, Redriven

DLQ = "persistent://public/default/orders-billing-DLQ"


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Return the questions, all of which are answered with yes."""
    questions: list[str] = []
    monkeypatch.setattr(operation, "check_can_ask", lambda **_: None)
    monkeypatch.setattr(operation, "ask", questions.append)
    return questions


@pytest.mark.parametrize(
    ("plan", "question", "code"),
    [
        ({}, None, 0),
        ({"left": {"no_target": 2}}, None, 1),
        ({"redriven": 1}, "Redrive 1 letter now?", 0),
        ({"stopped": SAMPLE}, "Redrive at least 0 letters now?", 0),
    ],
)
def test_nothing_to_do_is_no_question(monkeypatch, capsys, asked, plan, question, code) -> None:
    """The report of the dry run is the result then, and nothing is done."""
    done: list[str] = []

    def run(redrive: Redrive, _tell: Any = None) -> Redriven:
        if redrive._dry_run:
            return Redriven(source=DLQ, job="", dry_run=True, **plan)
        done.append(redrive.source)
        return Redriven(source=DLQ, job="1", dry_run=False)

    monkeypatch.setattr(Redrive, "run", run)
    assert code == cli.main(["redrive", DLQ, "--no-audit", "--json"])
    assert ([] if question is None else [question]) == asked
    assert ([] if question is None else [DLQ]) == done
    assert (question is None) == json.loads(capsys.readouterr().out)["dry_run"]
