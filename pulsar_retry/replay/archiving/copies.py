"""Where the originals of an edit are, and where its copies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.source import SUBSCRIPTION, find_subscription
from pulsar_retry.replay.waiting.waiting import subscription_of_retry
from pulsar_retry.wire.archive import (
    ARCHIVED_AS,
    ARCHIVED_EDIT,
    ARCHIVED_FROM,
    ARCHIVED_JOB,
    ARCHIVED_TO,
    EDITED,
    RESTORED_FROM,
    archive_of,
)
from pulsar_retry.wire.edited import EDITED_FROM, EDITED_JOB
from pulsar_retry.wire.names import Naming, kind_of
from pulsar_retry.wire.redrive import owner_of


@attrs.define
class EditSurvey:
    """Where originals and copies are.

    Attributes:
        jobs: The ids of the redrives that have edited them.
        targets: The topics that got the copies, by the places of the originals.
        subscriptions: The subscriptions whose retry topics these are, by the topics.
        archived: The places of originals, by their topics and ids in the archive.
        waiting: The places of originals whose copies wait in a retry topic.
        dead: The places of originals whose copies are in the dead-letter topic.
        taken_back: Those whose copies an undo that was killed has taken back.
        there: The places of originals that are in the dead-letter topic, or in the archive and
            already back.
    """

    jobs: set[str] = attrs.field(factory=set)
    targets: dict[str, str] = attrs.field(factory=dict)
    subscriptions: dict[str, str] = attrs.field(factory=dict)
    archived: dict[str, str] = attrs.field(factory=dict)
    waiting: set[str] = attrs.field(factory=set)
    dead: set[str] = attrs.field(factory=set)
    taken_back: set[str] = attrs.field(factory=set)
    there: set[str] = attrs.field(factory=set)

    def see_copy(self, properties: Mapping[str, str], found: set[str]) -> None:
        """Add the original of a letter to *found*, if the letter is an edited copy."""
        origin = properties.get(EDITED_FROM)
        if properties.get(EDITED_JOB) in self.jobs and origin in self.targets:
            found.add(origin)

    def see_dead(self, properties: Mapping[str, str], place: str) -> None:
        """Look at a letter of the dead-letter topic."""
        self.see_copy(properties, self.dead)
        if place in self.targets:  # the redrive was killed before it acknowledged the letter
            self.there.add(place)
        back = self.archived.get(properties.get(RESTORED_FROM, ""))
        if back is not None:  # an undo was killed before it acknowledged the archived letter
            self.there.add(back)


def survey_edit(
    client: Client, admin: AdminClient, source: str, job: str, asked: str | None = None
) -> EditSurvey:
    """Return where the originals and copies of an edit are. Nothing is consumed.

    Args:
        client: Reads the topics.
        admin: Gives their state.
        source: The dead-letter topic.
        job: The id of the redrive, or of its command in the audit log.
        asked: The subscription through which the letters were taken; None for the usual one.
    """
    seen = EditSurvey()
    owners = _see_originals(seen, client, admin, source, job)
    for target, owner in owners.items():
        if admin.topics.exists(target):
            seen.subscriptions[target] = subscription_of_retry(admin, target, owner)
    if not seen.targets:
        return seen
    for properties, _ in _letters(client, admin, archive_of(source), SUBSCRIPTION):
        if properties.get(ARCHIVED_AS) != EDITED:  # otherwise another edit has changed the copy
            seen.see_copy(properties, seen.taken_back)
    for target, subscription in seen.subscriptions.items():
        for properties, _ in _letters(client, admin, target, subscription):
            seen.see_copy(properties, seen.waiting)
        for properties, _ in _letters(client, admin, archive_of(target), SUBSCRIPTION):
            seen.see_copy(properties, seen.taken_back)
    through = find_subscription(admin, source, asked)
    for properties, position in _letters(client, admin, source, through):
        seen.see_dead(properties, f"{source} {position}")
    return seen


def _see_originals(
    seen: EditSurvey, client: Client, admin: AdminClient, source: str, job: str
) -> dict[str, str | None]:
    """Look at the archive; return the retry topics that got copies, with their subscriptions."""
    found: list[tuple[str, str, str, str, str | None]] = []
    archive = archive_of(source)
    for properties, position in _letters(client, admin, archive, SUBSCRIPTION):
        redrive = properties.get(ARCHIVED_EDIT, "")
        target = properties.get(ARCHIVED_TO)
        if properties.get(ARCHIVED_AS) != EDITED or target is None:
            continue
        if job in {properties.get(ARCHIVED_JOB), redrive}:
            seen.jobs.add(redrive)
        owner = None
        if kind_of(target) == "retry":
            owner = owner_of(source, properties, Naming.PULSAR).subscription
        found.append((redrive, properties.get(ARCHIVED_FROM, ""), target, position, owner))
    owners: dict[str, str | None] = {}
    # A redrive may have been continued by other commands: it is undone as a whole.
    for redrive, place, target, position, owner in found:
        if redrive in seen.jobs:
            seen.targets[place] = target
            seen.archived[f"{archive} {position}"] = place
            if kind_of(target) == "retry":
                owners[target] = owner
    return owners


def _letters(
    client: Client, admin: AdminClient, topic: str, subscription: str | None
) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the properties and ids of the letters of a topic; nothing if it does not exist."""
    if not admin.topics.exists(topic):
        return
    for each in read_letters(client, admin, admin.topics.partition_names(topic), subscription):
        with contextlib.suppress(UnicodeDecodeError):
            yield each.raw.properties(), str(each.position)
