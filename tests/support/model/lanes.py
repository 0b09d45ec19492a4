"""Checks that what happened to keys with durable lanes is a behaviour of tests/model/Lanes.tla.

The stream and the log of a subscription have claims, entries and releases, in their order. The
handlers' ledger has when each attempt began and ended, and the result. So each key that was held
has a trace, and `tests/model/LanesTrace.tla` finds what the broker and the processes did between.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pulsar

from pulsar_retry.wire.lanes import MARK, Entry, LaneClaim, LaneTopics, Removed, decode
from support.model.checker import check_none, follow
from support.pull.durable import Book

#: The times of pulsar-client have no microseconds: these may be any.
MS = 0.000999

#: The order of what happens at the same time.
_RANKS = {"end": 0, "release": 1, "begin": 2, "ok": 2, "fail": 2}

_CONFIG = """
CONSTANT Last = {last}
CONSTANT MaxHand = 100
CONSTANT MaxFails = 100000
CONSTANT MaxFaults = 100000
CONSTANT MaxStream = 100000
CONSTANT MaxLog = 100000
CONSTANT Lags = TRUE
CONSTANT Faults = {{"move", "kill", "cut", "cut stream", "lose"}}
CONSTANT Bug = "none"
"""


@attrs.frozen
class Event:
    """One event of a key.

    Attributes:
        at: When it happened, in seconds; not before that, for what is stored in a topic.
        kind: What happened.
        p: The process.
        m: The message, from 1.
        k: The entry of the stream, by its place.
        flag: Whether an entry is stored again, or a release frees the key.
    """

    at: float
    kind: str
    p: str
    m: int = 0
    k: int = 0
    flag: bool = False


def keep(client: Any, topic: str, subscription: str) -> None:
    """Have the broker keep all that is stored in the stream from now on."""
    client.subscribe(LaneTopics.of(topic, subscription).stream, "trace").close()


def check_lanes(
    client: Any, topic: str, subscription: str, book: Book, messages: int, folder: Path
) -> None:
    """Check what happened to ten keys that were held, each of which had so many messages.

    Raises:
        NotABehaviourError: the model does not allow it.
    """
    book.look()
    topics = LaneTopics.of(topic, subscription)
    found = traces(book, read(client, topics.stream), read(client, topics.log), messages)
    few = dict(list(found.items())[:10])
    if few:
        check_none(few, refused(few, folder))


def refused(found: Mapping[str, Sequence[Event]], folder: Path) -> dict[str, int]:
    """Return which traces the model does not allow, and the place of the event that it refuses."""
    last = max(events[-1].m for events in found.values())
    events = {
        key: [attrs.asdict(each, filter=lambda field, _: field.name != "at") for each in events]
        for key, events in found.items()
    }
    return follow("Lanes", _CONFIG.format(last=last), events, folder)


def read(client: Any, topic: str) -> list[pulsar.Message]:
    """Return all messages of a topic."""
    messages = []
    with contextlib.closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
        while reader.has_message_available():
            messages.append(reader.read_next(30_000))
    return messages


def traces(
    book: Book, stream: Sequence[Any], log: Sequence[Any], messages: int
) -> dict[str, list[Event]]:
    """Return the events of each key that was held; each key has so many *messages*."""
    events = _of_log(log)
    places = _of_stream(stream, events)
    for one in book.all:
        if (found := events.get(one.key)) is None:
            continue
        m = one.number + 1
        if not one.entry:
            found.append(Event(one.began, "begin", one.by, m))
            found.append(Event(one.ended, "ok" if one.is_success else "fail", one.by, m))
        elif one.is_success:
            found.append(Event(one.ended, "end", one.by, m, places[one.key][one.entry]))
    gone = book.gone()
    return {key: _in_order(found, gone, messages) for key, found in events.items()}


def _of_log(log: Sequence[Any]) -> dict[str, list[Event]]:
    """Return claims and releases, by key."""
    events: dict[str, list[Event]] = defaultdict(list)
    writers: dict[str, str] = {}
    live: dict[str, set[str]] = defaultdict(set)
    last: dict[str, float] = defaultdict(float)
    for message in log:
        producer = message.producer_name()
        match decode(message.partition_key(), message.data()):
            case LaneClaim(lane=key) as claim:
                writers[producer] = claim.by
                at = last[key] = max(last[key], claim.since)
                live[key].add(claim.id)
                events[key].append(Event(at, "claim", claim.by))
            case Removed(record=LaneClaim(lane=key) as claim):
                live[key].discard(claim.id)
                by = writers[producer]
                if claim.id.startswith(by):  # those of others are removed before its own
                    at = last[key] = max(last[key], message.publish_timestamp() / 1000)
                    events[key].append(Event(at, "release", by, flag=not live[key]))
    return events


def _of_stream(stream: Sequence[Any], events: dict[str, list[Event]]) -> dict[str, dict[str, int]]:
    """Add the entries to the events of held keys; return the place of each, by key and name."""
    places: dict[str, dict[str, int]] = defaultdict(dict)
    counts: dict[str, int] = defaultdict(int)
    last: dict[str, float] = defaultdict(float)
    for message in stream:
        key, entry = message.partition_key(), Entry.of(message.properties())
        if entry is None or entry.source == MARK or key not in events:
            continue
        counts[key] += 1
        is_again = entry.name in places[key]
        places[key].setdefault(entry.name, counts[key])
        at = last[key] = max(last[key], message.publish_timestamp() / 1000 + MS)
        m = int(message.data()) + 1
        events[key].append(Event(at, "entry", entry.writer, m, counts[key], is_again))
    return places


def _in_order(events: list[Event], gone: Mapping[str, float], messages: int) -> list[Event]:
    """Return the events of one key in order, with the ends of processes, and what these lose."""
    for p in {each.p for each in events} & gone.keys():
        at = max(gone[p], *(each.at for each in events if each.p == p))
        events.append(Event(at, "gone", p))
    ends = [each.at for each in events if each.kind == "end"]
    for place, event in enumerate(events):
        if event.kind == "release":  # after all that has ended in this millisecond
            at = max([event.at, *(end for end in ends if event.at <= end <= event.at + MS)])
            events[place] = attrs.evolve(event, at=at)
    events.sort(key=lambda each: (each.at, _RANKS.get(each.kind, 3)))
    for place, event in enumerate(events):
        before, later = events[:place], events[place:]
        if event.kind == "claim":  # for the message that is published next
            own = [each.m for each in later if each.p == event.p and each.kind == "entry"]
            had = [each.m for each in before if each.p == event.p]
            m = own[0] if own else max(had, default=0) + 1
            events[place] = attrs.evolve(event, m=m)
        elif event.kind == "gone":  # the acknowledgements of what comes again are lost
            topic = [each.m for each in later if each.kind in {"begin", "entry"}]
            ends = [each.k for each in later if each.kind == "end"]
            events[place] = attrs.evolve(
                event, m=min(topic, default=messages + 1), k=min(ends, default=len(events))
            )
    return [*events, Event(0, "over", events[0].p, messages)]
