"""Reads the letters of a retry partition without consuming them, and publishes some again."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.consumer.handoff.sending import Flight
from pulsar_retry.letters.facts import is_published_here
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.ack_state import EntryPlace, Surveyed
from pulsar_retry.replay.publishing import AcknowledgedLater, TargetKeeper, hand_off_of
from pulsar_retry.replay.reading import read_after
from pulsar_retry.replay.seeking.letters import OpenLetter, anew
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.wire.owner import Recipient, Stray
from pulsar_retry.wire.properties import Origin, letter_properties, message_id_text

#: How many letters are in flight at most.
_IN_FLIGHT = 500

_LATER = AcknowledgedLater()


def entry_place_of(raw: Any) -> EntryPlace:
    """Return the place of a raw message, or of the last chunk of a chunked one."""
    message_id = raw.message_id()
    return EntryPlace(message_id.ledger_id(), message_id.entry_id())


def read_unacknowledged(
    client: pulsar.Client,
    admin: AdminClient,
    seen: Surveyed,
    places: Collection[EntryPlace] | None = None,
    unreadable: list[EntryPlace] | None = None,
) -> Iterator[Any]:
    """Yield the raw messages of a partition that were unacknowledged in the survey *seen*.

    With *places*, yield the messages at these places instead, acknowledged or not. Those that
    cannot be read are left out, and added to *unreadable*.

    Raises:
        pulsar.PulsarException: a message does not come, although it is stored.
    """
    wanted = set(seen.acks.unacknowledged(seen.log) if places is None else places)
    if not wanted:
        return
    log = seen.log.until(max(wanted))
    begin = min(wanted).before

    def skipped(place: EntryPlace) -> None:
        if unreadable is not None and place in wanted:
            unreadable.append(place)

    for raw, _ in read_after(client, admin, seen.topic, begin, log, skipped=skipped):
        if entry_place_of(raw) in wanted:
            yield raw


def read_open_letters(
    client: pulsar.Client,
    admin: AdminClient,
    seen: Surveyed,
    recipient: Recipient,
    *,
    chunked: dict[EntryPlace, Any] | None = None,
    unreadable: list[EntryPlace] | None = None,
) -> list[OpenLetter]:
    """Return the letters of a retry partition that are not acknowledged, without their payloads.

    Letters that *recipient* will not handle, because they are another's, are left out. The ids of
    chunked letters are added to *chunked*, and the places of those that cannot be read, because
    they are encrypted or incomplete, to *unreadable*.
    """
    letters = []
    for raw in read_unacknowledged(client, admin, seen, unreadable=unreadable):
        place, properties = entry_place_of(raw), raw.properties()
        if recipient.stray(properties, is_ours=is_published_here(raw)) is Stray.DROPPED:
            continue
        own = recipient.own(properties, seen.topic)
        letters.append(OpenLetter.read(place, raw.publish_timestamp(), own))
        if chunked is not None and ";" in str(raw.message_id()):
            chunked[place] = raw.message_id()
    return letters


class Republisher:
    """Publishes letters again, without their counts and delays, and waits for each receipt."""

    def __init__(
        self,
        client: Client,
        admin: AdminClient,
        keeper: TargetKeeper,
        subscription: Subscription,
        *,
        source: Recipient | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            client: Reads and publishes.
            admin: Says how far a reader is.
            keeper: Has the letters kept.
            subscription: The subscription that gets them.
            source: The subscription that they are letters of; None: the same.
            properties: They replace properties of the letters.
        """
        self._client, self._admin = client, admin
        self._keeper, self._subscription = keeper, subscription
        self._source = source or subscription.recipient
        self._properties = dict(properties or {})
        self._open = contextlib.ExitStack()

    def publish(
        self, seen: Surveyed, places: Collection[EntryPlace], topic: str
    ) -> set[EntryPlace]:
        """Publish the letters of a partition at *places* to *topic*; return when all are stored.

        Returns:
            The places of those that were published. The others cannot be read.

        Raises:
            LetterPublishError: a letter was not stored. Nothing is acknowledged yet.
        """

        def again(raw: Any) -> dict[str, str]:
            own = self._source.own(raw.properties(), seen.topic)
            return anew(own, entry_place_of(raw), self._subscription.naming) | self._properties

        return set(self._publish(seen, places, topic, again))

    def publish_messages(self, seen: Surveyed, places: Collection[EntryPlace]) -> int:
        """Publish messages of a main partition as letters without a delay, as first attempts.

        Returns:
            How many were published; a batch has several messages at one place.

        Raises:
            LetterPublishError: a letter was not stored.
        """
        name, retry = self._subscription.name, self._subscription.retry_letter_topic

        def first(raw: Any) -> dict[str, str]:
            message_id = message_id_text(raw.message_id())
            origin = Origin(raw.topic_name(), message_id, name)
            own = self._source.own(raw.properties(), raw.topic_name())
            return letter_properties(own, origin, count=0, delay=0.0, retry_topic=retry)

        return len(self._publish(seen, places, retry, first))

    def _publish(
        self,
        seen: Surveyed,
        places: Collection[EntryPlace],
        topic: str,
        properties: Callable[[Any], dict[str, str]],
    ) -> list[EntryPlace]:
        self._keeper.keep(self._hand_off.producers, topic, self._subscription.name)
        published: list[EntryPlace] = []
        under_way: deque[Future[None]] = deque()
        for raw in read_unacknowledged(self._client, self._admin, seen, places):
            letter = Letter(topic, properties(raw))
            future = LetterFuture()
            flight = Flight(self._hand_off, raw, _LATER, letter, raw.length(), future)
            under_way.append(self._hand_off.hand_on(flight))
            published.append(entry_place_of(raw))
            if len(under_way) >= _IN_FLIGHT:
                under_way.popleft().result()
        for each in under_way:
            each.result()
        return published

    def __enter__(self) -> Self:
        self._hand_off = self._open.enter_context(
            hand_off_of(self._client, max_pending=_IN_FLIGHT, natively=False)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
