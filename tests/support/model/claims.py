"""Checks that what happened to a subscription with claims is a behaviour of tests/model/Claims.tla.

The topic of the claims has the records of all processes, in their order. The handlers' ledger has
when each attempt began and ended. `tests/model/ClaimsTrace.tla` finds the deliveries between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import attrs

from pulsar_retry.pull.rules.claims import Record
from support.appended import whole_lines
from support.model.checker import check_none, follow, in_tla
from support.model.lanes import MS

_CONFIG = """
CONSTANT Msgs = {messages}
CONSTANT Poison = {poison}
CONSTANT MaxCrashes = {crashes}
CONSTANT MaxKills = 100000
CONSTANT MaxCuts = 100000
CONSTANT MaxAgains = 100000
CONSTANT Whole = FALSE
CONSTANT Bug = "none"
"""


@attrs.frozen
class Event:
    """One event of a subscription.

    Attributes:
        at: When it happened, in seconds.
        kind: What happened.
        p: The process.
        m: The message.
        hand: The messages in a record.
        settles: The deaths of which the end of a handler settles the claims; the first is 0.
    """

    at: float
    kind: str
    p: str
    m: str = ""
    hand: frozenset[str] = frozenset()
    settles: frozenset[int] = frozenset()


def keep(client: Any, topic: str) -> None:
    """Have the broker keep all that is stored in the topic of the claims from now on."""
    client.subscribe(topic, "trace").close()


def check_claims(
    records: Iterable[Any], ledger: Path, letters: Iterable[Any], crashes: int, folder: Path
) -> None:
    """Check what happened to a subscription.

    Args:
        records: The messages of the topic of the claims, up to the end of the processes.
        ledger: That of `support.pull.crashing`.
        letters: The dead letters.
        crashes: How many condemn a message.
        folder: Where TLC runs.

    Raises:
        NotABehaviourError: the model does not allow it.
    """
    records = list(records)
    lines = [line.split(" ", 4) for line in whole_lines(ledger)]
    names = {name: payload for *_, payload, name in lines}
    keys = [each.partition_key() for each in records]
    processes = {key.split("-")[-2]: key for key in keys if " " not in key}
    handled = [Event(float(at), kind, processes[pid], m) for kind, at, pid, m, _ in lines]
    handled.sort(key=lambda each: each.at)
    deaths = {each.p: each for each in handled if each.kind == "dies"}
    events = [*_of_records(records, names, deaths), *_settling(handled, records, names, deaths)]
    for letter in letters:
        at, m = letter.publish_timestamp() / 1000 + MS, letter.data().decode()
        had = [each for each in events if m in each.hand and each.at <= at]
        events.append(Event(at, "dead", max(had, key=lambda each: each.at).p, m))
    found = {"the subscription": _in_order(events)}
    check_none(found, refused(found, folder, messages=set(names.values()), crashes=crashes))


def refused(
    found: Mapping[str, Sequence[Event]], folder: Path, *, messages: set[str], crashes: int
) -> dict[str, int]:
    """Return which traces the model does not allow, and the place of the event that it refuses.

    Messages whose names begin with "poison" kill their processes.
    """
    poison = {each for each in messages if each.startswith("poison")}
    events = {name: [attrs.asdict(each, recurse=False) for each in found[name]] for name in found}
    for each in chain.from_iterable(events.values()):
        del each["at"]
    config = _CONFIG.format(messages=in_tla(messages), poison=in_tla(poison), crashes=crashes)
    return follow("Claims", config, events, folder)


def _of_records(
    messages: Iterable[Any], names: Mapping[str, str], deaths: Mapping[str, Event]
) -> list[Event]:
    """Return what the records say."""
    events: list[Event] = []
    last: dict[str, Record] = {}
    now = 0.0
    for message in messages:
        process = message.partition_key()
        if " " in process:  # a claim of another process is settled
            continue
        record, before = Record(process, message.data()), last.get(process, Record(process, b""))
        now = max(now, record.at or message.publish_timestamp() / 1000 + MS)
        # What a process has sent may be stored after its death, and after the records of others.
        at = min(now, deaths[process].at) if process in deaths else now
        last[process] = record
        if has_left := before.alone not in {None, record.alone}:
            events.append(Event(at, "leave", process))
        if before.turn not in {0, record.turn} and not has_left:
            events.append(Event(at, "give", process))
        if record.turn not in {0, before.turn}:
            events.append(Event(at, "ask", process))
        if record.alone is None:
            hand = frozenset(names.get(each, each) for each in record.accused)
            events.append(Event(at, "commit", process, hand=hand))
        elif record.alone != before.alone:
            events.append(Event(at, "alone", process, names[record.alone]))
    return events


def _settling(
    events: Sequence[Event],
    messages: Iterable[Any],
    names: Mapping[str, str],
    deaths: Mapping[str, Event],
) -> list[Event]:
    """Return *events*, in which handlers that end settle the claims of which marks are stored.

    A process that dies soon after the end of a handler has often not sent them.
    """
    settles: dict[int, set[int]] = {}
    numbers = {process: number for number, process in enumerate(deaths)}
    for message in messages:
        process, is_mark, name = message.partition_key().partition(" ")
        if is_mark and process in deaths:
            at, m = message.publish_timestamp() / 1000 + MS, names[name]
            ends = (
                place
                for place, each in enumerate(events)
                if (each.kind, each.m) == ("ended", m) and each.at <= at
            )
            settles.setdefault(max(ends), set()).add(numbers[process])
    return [
        attrs.evolve(each, settles=frozenset(settles.get(place, ())))
        for place, each in enumerate(events)
    ]


def _in_order(events: list[Event]) -> list[Event]:
    """Return the events in order.

    The ledger has the end of a handler a moment before its process knows it. A record that still
    has the message is before the end: if the process dies, this record accuses the message.
    """
    events = sorted(events, key=lambda each: each.at)
    for place in reversed(range(len(events))):
        if events[place].kind == "ended":
            events.insert(_end_of(place, events), events.pop(place))
    return [*events, Event(0, "over", events[0].p)]


def _end_of(place: int, events: Sequence[Event]) -> int:
    """Return the place at which the process knows of the end at *place*."""
    p, m, found = events[place].p, events[place].m, place
    for later in range(place + 1, len(events)):
        match events[later]:
            case Event(kind="began", p=p_, m=m_) if (p_, m_) == (p, m):
                return place  # it has come again
            case Event(kind="commit", p=p_, hand=hand) if p_ == p and m in hand:
                found = later
            case Event(kind="commit" | "alone" | "leave" | "dies", p=p_) if p_ == p:
                break
    return found
