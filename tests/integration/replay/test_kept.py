"""What commands write stays, although its topic was deleted while they ran."""

from __future__ import annotations

import urllib.error
from contextlib import suppress

import pytest

from pulsar_retry.ops.audit import Act, audit_topic, audited
from pulsar_retry.replay.archiving.archiving import Archiving
from pulsar_retry.replay.editing.content import LetterContent
from pulsar_retry.replay.editing.edit import Edit
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.waiting.waiting import WaitingLetters
from pulsar_retry.wire.archive import archive_of
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
