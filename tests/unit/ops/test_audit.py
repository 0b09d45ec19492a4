"""The entries of the audit log, as they are read."""

from __future__ import annotations

from pulsar_retry.ops.audit import audit_topic, joined
from pulsar_retry.replay.redriving.source import operator_name


def begun(job: str, at: str = "2026-01-01", **more: object) -> dict[str, object]:
    """Return the entry of a command that begins."""
    return {"phase": "begun", "job": job, "at": at, "by": "ada", "verb": "seek", **more}


def test_two_lines_are_one_command() -> None:
    """With its result, or its error; the latest command is first."""
    lines = [
        begun("a", "2026-01-01"),
        begun("b", "2026-01-02"),
        {"phase": "ended", "job": "b", "at": "2026-01-03", "error": "AdminError: no"},
        {"phase": "ended", "job": "a", "at": "2026-01-04", "result": {"count": 3}},
    ]
    second, first = joined(iter(lines))
    assert ("b", "AdminError: no", "2026-01-03") == (second.job, second.error, second.ended)
    assert ("a", {"count": 3}, None) == (first.job, first.result, first.error)


def test_a_command_that_was_killed() -> None:
    """It has no end; an end without a beginning is no command."""
    lines = [begun("a"), {"phase": "ended", "job": "x", "at": "2026-01-03"}, {"odd": 1}]
    (only,) = joined(iter(lines))
    assert ("a", None) == (only.job, only.ended)


def test_where_and_who() -> None:
    """One topic for a namespace; a user and a host."""
    assert "persistent://a/b/pulsar-retry-audit" == audit_topic("persistent://a/b/c-partition-1")
    assert "persistent://a/b/pulsar-retry-audit" == audit_topic("non-persistent://a/b/c")
    assert "@" in operator_name()
