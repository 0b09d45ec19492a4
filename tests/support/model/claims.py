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
    """

    at: float
    kind: str
    p: str
    m: str = ""
    hand: frozenset[str] = frozenset()


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
    lines = [line.split(" ", 4) for line in ledger.read_text(encoding="ascii").splitlines()]
    names = {name: payload for *_, payload, name in lines}
    events, processes = _of_records(records, names)
    events += [Event(float(at), kind, processes[pid], m) for kind, at, pid, m, _ in lines]
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
    messages: Iterable[Any], names: Mapping[str, str]
) -> tuple[list[Event], dict[str, str]]:
    """Return what the records say, and the name of each process by its id."""
    events: list[Event] = []
    last: dict[str, Record] = {}
    now = 0.0
    for message in messages:
        process = message.partition_key()
        if " " in process:  # a claim of another process is settled
            continue
        record, before = Record(process, message.data()), last.get(process, Record(process, b""))
        now = max(now, record.at or message.publish_timestamp() / 1000 + MS)
        last[process] = record
        if has_left := before.alone not in {None, record.alone}:
            events.append(Event(now, "leave", process))
        if before.turn not in {0, record.turn} and not has_left:
            events.append(Event(now, "give", process))
        if record.turn not in {0, before.turn}:
            events.append(Event(now, "ask", process))
        if record.alone is None:
            hand = frozenset(names.get(each, each) for each in record.accused)
            events.append(Event(now, "commit", process, hand=hand))
        elif record.alone != before.alone:
            events.append(Event(now, "alone", process, names[record.alone]))
    return events, {process.split("-")[-2]: process for process in last}


def _in_order(events: list[Event]) -> list[Event]:
    """Return the events in order; records that still have what has just ended are put right."""
    events = sorted(events, key=lambda each: each.at)
    ended: set[tuple[str, str]] = set()
    for place, event in enumerate(events):
        if event.kind == "ended":
            ended.add((event.p, event.m))
        elif event.kind == "commit":
            comes = {each.m for each in events[place:] if (each.kind, each.p) == ("began", event.p)}
            hand = {m for m in event.hand if m in comes or (event.p, m) not in ended}
            events[place] = attrs.evolve(event, hand=frozenset(hand))
    return [*events, Event(0, "over", events[0].p)]
