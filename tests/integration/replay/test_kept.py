"""What commands write stays, although its topic was deleted while they ran."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pulsar_retry.ops.audit import Act, audit_topic, audited
from pulsar_retry.replay.redriving.run import Run

KEEPER = "pulsar-retry"


def test_an_audit_log_that_is_deleted_meanwhile(dead, admin) -> None:
    """It keeps the entry of how the command has ended."""
    log = audit_topic(dead.topic)
    with audited(dead.cluster, dead.topic, Act(verb="redrive", target=dead.dlq)):
        admin.delete_topic(log)

    assert 1 == admin.backlog(log, KEEPER)


@pytest.mark.parametrize(("to", "keeper"), [("retry", "billing"), ("origin", KEEPER)])
def test_a_target_that_is_deleted_meanwhile(dead, admin, monkeypatch, to: str, keeper: str) -> None:
    """What is redriven to it from then on is kept, and the result tells of it."""
    dead.subscribe().close()
    dead.fill(300)
    target, deleted = dead.retry if to == "retry" else dead.topic, []

    sent, send = itertools.count(1), Run._send

    def delete_and_send(run: Run, *letter: Any) -> None:
        if next(sent) == 100:
            admin.delete_topic(target)
            deleted.append(run.tally.redriven)
        send(run, *letter)

    monkeypatch.setattr(Run, "_send", delete_and_send)
    done = dead.redrive(to, rate=100).run()

    assert (300, True) == (done.redriven, bool(deleted))
    assert 0 < admin.backlog(target, keeper) <= 300 - deleted[0]
    (doubt,) = done.doubts
    assert target in doubt
    assert keeper in doubt
    assert (False, None) == (done.is_complete, done.became)
