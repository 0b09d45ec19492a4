"""The texts that verbs print of letters, which anybody may have written."""

from __future__ import annotations

import json

import pytest

from pulsar_retry import cli
from pulsar_retry.cli import audit
from pulsar_retry.cli._common.letters import full, line, show_groups
from pulsar_retry.cli._common.output import show_json, table
from pulsar_retry.ops.audit import AuditEntry
from pulsar_retry.replay.redriving.report import Group

FORGED = "late\nproperty tenant = 7\r\x1b[2J"
FACTS = {
    "published": "2026-03-01T12:00:00+00:00",
    "message_id": "86:1:-1",
    "key": FORGED,
    "reason": FORGED,
    "error": None,
    "message": FORGED,
    "traceback": None,
    "properties": {FORGED: FORGED},
    "payload": "tea",
}


def test_a_letter_cannot_add_lines_of_its_own() -> None:
    """A line break in a value is followed by spaces, and on one line there is none."""
    begins = [each.split(" ")[0] for each in full(FACTS).splitlines()]
    names = {"", "published", "message_id", "key", "reason", "message", "property"}
    assert names | {"payload:", "tea"} == set(begins)
    assert 1 == begins.count("property")
    assert 1 == len(line(FACTS).splitlines())


def test_a_row_is_one_line_and_not_endless(capsys) -> None:
    """Also if a reason has several lines, or thousands of characters."""
    groups = [Group(FORGED, "E" * 5000, "f" * 5000, FORGED, 2, 0.0, 1.0, ("1:1",))]
    show_groups(groups)
    table(["any"], [(FORGED,)])
    _, _, row, message, _, other = capsys.readouterr().out.splitlines()
    assert len(row) < 300
    assert "1:1  late" == message.strip()
    assert "\x1b" not in other


def test_groups_of_usual_failures_fit_80_columns(capsys) -> None:
    """With the longest of our own reasons, and an error whose text has no end."""
    facts = ("retries-exhausted", "ConnectionError", "8e33289f9856ef1a", "no answer " * 20)
    show_groups([Group(*facts, 12_345, 0.0, 1.0, ("12345:123:-1",))])
    lines = capsys.readouterr().out.splitlines()
    assert "8e33289f9856ef1a" == lines[2].split()[-1]
    assert max(map(len, lines)) <= 80


def test_half_of_a_pair_of_surrogates_ends_no_export(capsys) -> None:
    """JSON can hold it, and UTF-8 cannot."""
    facts = {"value": json.loads(r'"caf\u00e9 \ud83c"')}
    show_json(facts, lines=True)
    text = capsys.readouterr().out
    assert r'"café \ud83c"' in text
    assert facts == json.loads(text)


@pytest.mark.parametrize(
    ("why", "target"),
    [(None, "orders"), ("INC-1\nforged", "persistent://shop/orders/orders")],
)
def test_commands_of_the_audit_log_fit_a_terminal(monkeypatch, capsys, why, target) -> None:
    """Each line of them, and what others have written adds none."""
    entry = AuditEntry(
        at="2026-03-01T12:00:00.123+00:00",
        by="ada@desk",
        verb="redrive",
        target=target,
        job="b1946ac92492",
        given={"dlqs": ["x"], "reason": ["timeout"], "search": ["word"] * 50},
        ended="2026-03-01T12:00:01.123+00:00",
        result={"redriven": 7, "became": {"handled": 5, "waiting": 2, "dead": 0}},
        why=why,
    )
    monkeypatch.setattr(audit, "read_audit", lambda *_: [entry])
    assert 0 == cli.main(["audit", "ls"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(each) <= 100 for each in lines)
    lines = [each for each in lines if not each.startswith("    ")]
    assert "2026-03-01T12:00:00Z  ada@desk  b1946ac92492" == lines[0]
    assert lines[1].startswith('  redrive orders {"reason": ["timeout"], "search"')
    assert "  redriven 7, handled 5, waiting 2, dead 0" == lines[2]
    assert ["  why: INC-1"] * (why is not None) == lines[3:]
