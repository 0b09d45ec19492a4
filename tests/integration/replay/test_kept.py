"""What commands write stays, although its topic was deleted while they ran."""

from __future__ import annotations

import itertools
import urllib.error
from contextlib import suppress
from typing import Any

import pytest

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.ops.audit import Act, audit_topic, audited
from pulsar_retry.replay.archiving.archiving import Archiving
from pulsar_retry.replay.editing.content import LetterContent
from pulsar_retry.replay.editing.edit import Edit
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.run import Run
from pulsar_retry.replay.waiting.waiting import WaitingLetters
from pulsar_retry.wire.archive import archive_of, republished
from support.replay.redriving import Dead
from support.replay.waiting import fill_retry, note

KEEPER = "pulsar-retry"


def archived(dead: Dead, between) -> None:
    """Archive dead letters."""
    dead.fill(200)
    Archiving(dead.dlq, note(), cluster=dead.cluster, rate=100).run(between)


def edited(dead: Dead, between) -> None:
    """Edit dead letters, whose originals are archived."""
    dead.subscribe().close()
    dead.fill(200)
    dead.redrive(edit=Edit.of_function(changed), rate=100).run(between)


def changed(letter: LetterContent) -> LetterContent:
    """Change a letter."""
    return letter.with_properties({"fixed": "yes"})


def cancelled(dead: Dead, between) -> None:
    """Cancel letters that wait."""
    dead.subscribe().close()
    fill_retry(dead, 2_000, delay=3600)
    WaitingLetters(dead.cluster, dead.retry, where=Filter()).cancel(
        note(), tell=lambda done, _total: between(done)
    )


@pytest.mark.parametrize("command", [archived, edited, cancelled])
def test_an_archive_that_is_deleted_meanwhile(dead, admin, command) -> None:
    """Its subscription is created again, for what comes then."""
    archive, deleted = archive_of(dead.retry if command is cancelled else dead.dlq), []

    def between(_: object) -> None:
        if not deleted:
            with suppress(urllib.error.HTTPError):  # it is not there yet
                admin.delete_topic(archive)
                deleted.append(archive)

    command(dead, between)

    assert admin.backlog(archive, KEEPER) > 0


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
            deleted.append(run.redriven)
        send(run, *letter)

    monkeypatch.setattr(Run, "_send", delete_and_send)
    done = dead.redrive(to, rate=100).run()

    assert (300, True) == (done.redriven, bool(deleted))
    assert 0 < admin.backlog(target, keeper) <= 300 - deleted[0]
    (problem,) = done.problems
    assert target in problem
    assert keeper in problem


def test_a_retry_topic_that_is_deleted_while_its_letters_are_expedited(
    dead, admin, monkeypatch
) -> None:
    """The copies that come then are kept, and the command fails."""
    dead.subscribe().close()
    fill_retry(dead, 1_000, delay=3600)
    made = itertools.count(1)

    def copied(*arguments: Any) -> dict[str, str]:
        if next(made) == 500:
            admin.delete_topic(dead.retry)
        return republished(*arguments)

    monkeypatch.setattr("pulsar_retry.replay.waiting.waiting.republished", copied)
    with pytest.raises(PulsarRetryError, match="billing"):
        WaitingLetters(dead.cluster, dead.retry, where=Filter()).expedite("job")

    assert admin.backlog(dead.retry, "billing") > 0
