"""Traces that are behaviours of the models, and traces that are not; docs/protocol.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

import pulsar_retry as pr
from pulsar_retry.pull.rules.claims import Record
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.wire.lanes import LANE_ENTRY, LaneTopics
from support.model import claims, lanes
from support.model.checker import check_none
from support.pull.durable import Book, Handled


def place(text: str) -> int:
    """Return the place of the event with the mark; without a mark, that of the end."""
    return text.partition("!")[0].count(",") + ("!" not in text)


def lane(text: str, *, messages: int = 3) -> list[lanes.Event]:
    """Return a trace: of each event its name, the process, and the numbers that it has."""
    events = []
    for each in text.replace("!", "").split(","):
        kind, p, *numbers = each.split()
        m, k = map(int, [*numbers, "0", "0"][:2])
        flag = kind in {"again", "frees"}
        kind = {"again": "entry", "frees": "release"}.get(kind, kind)
        events.append(lanes.Event(0, kind, p, m, k, flag))
    return [*events, lanes.Event(0, "over", "a", messages)]


FAILED = "begin a 1, fail a 1, claim a 1, entry a 1 1, entry a 2 2"
ENDS = "end b 1 1, end b 2 2, frees a"
LAST = "begin a 3, ok a 3"

LANES = {
    "without a failure": "begin a 1, ok a 1, begin a 2, ok a 2, begin b 3, ok b 3",
    "a lane": f"{FAILED}, {ENDS}, {LAST}",
    "stored twice": "begin a 1, fail a 1, claim a 1, entry a 1 1, again a 1 2, entry a 2 3, "
    f"end b 1 1, end b 2 3, frees a, {LAST}",
    # The entry of 2 is stored, but its acknowledgement is lost.
    "a kill": f"{FAILED}, gone a 2 1, claim b 2, entry b 2 3, end b 1 1, end b 2 2, end b 2 3, "
    "frees b, begin b 3, ok b 3",
    "another process claims": f"{FAILED}, claim b 3, entry b 3 3, end a 1 1, end a 2 2, "
    "end a 3 3, frees b",
    # The connection breaks while 2 is published, so both processes do it, and a claims again.
    "a cut": f"{FAILED}, claim b 2, entry b 2 3, claim a 3, entry a 3 4, end a 1 1, end a 2 2, "
    "end a 2 3, end a 3 4, frees a",
    # Before it has published 1, a loses its connection, so b publishes it.
    "let go": "begin a 1, fail a 1, claim a 1, claim b 1, entry b 1 1, entry b 2 2, claim a 3, "
    "entry a 3 3, end b 1 1, end b 2 2, end b 3 3, frees a",
    # The connection of a breaks, b gets 1 and dies, and only then a's acknowledgement is accepted.
    "acknowledged late": "begin a 1, fail a 1, claim a 1, entry a 1 1, claim b 1, gone b 2 1, "
    f"claim a 2, entry a 2 2, end a 1 1, end a 2 2, frees a, {LAST}",
    "handled again": "begin a 1, ok a 1, gone a 1 1, begin b 1, ok b 1, begin b 2, ok b 2, "
    "begin b 3, ok b 3",
}
#: The event with the mark is refused; without a mark, the end is.
NO_LANES = {
    "a successor before its head ends": f"{FAILED}, !begin a 3, ok a 3, {ENDS}",
    "a successor by another process": f"{FAILED}, !begin b 3, ok b 3, {ENDS}",
    "a successor while the head is handled": f"begin a 1, !begin a 2, ok a 2, ok a 1, {LAST}",
    "a successor though a dead process holds the key": "begin a 1, fail a 1, claim a 1, "
    "entry a 1 1, gone a 2 1, end b 1 1, !begin b 2, ok b 2, begin b 3, ok b 3",
    "overtaken in the stream": f"{FAILED}, !end b 2 2, end b 1 1, frees a, {LAST}",
    "released while a message waits": f"{FAILED}, end b 1 1, !frees a, end b 2 2, {LAST}",
    "released with an old claim": f"{FAILED}, claim b 3, entry b 3 3, end a 1 1, end a 2 2, "
    "!frees a, end a 3 3",
    "too little is released": f"{FAILED}, claim b 3, entry b 3 3, end a 1 1, end a 2 2, end a 3 3, "
    "!release b",
    "lost": f"begin a 1, fail a 1, claim a 1, entry a 1 1, end b 1 1, frees a, !{LAST}",
    "published without a claim": f"begin a 1, fail a 1, !entry a 1 1, end b 1 1, begin a 2, {LAST}",
    "no end": FAILED,
}


def test_lanes_that_are_behaviours(tmp_path: Path) -> None:
    """Only what the broker or a process may do unseen is assumed."""
    traces = {name: lane(text) for name, text in LANES.items()}
    check_none(traces, lanes.refused(traces, tmp_path))


def test_lanes_that_are_no_behaviours(tmp_path: Path) -> None:
    """The marked event is refused, and none before it."""
    traces = {name: lane(text) for name, text in NO_LANES.items()}
    places = {name: place(text) for name, text in NO_LANES.items()}
    assert lanes.refused(traces, tmp_path) == places


def test_lanes_in_memory_are_behaviours(tmp_path: Path) -> None:
    """The real code in virtual time: a subscriber is abandoned, and another one goes on."""
    book, fails = Book(tmp_path), {("a", 0): 3, ("b", 2): 1, ("a", 4): 1}
    memory = MemoryBroker()
    policy = pr.RetryPolicy(max_attempts=9, backoff=pr.Fixed(60))

    def start() -> pr.Subscriber:
        def handle(message: Any) -> None:
            key, number, now = message.partition_key(), int(message.data()), memory.clock.time()
            fails[key, number] = left = fails.get((key, number), 0) - 1
            entry = message.properties().get(LANE_ENTRY, "").partition(" ")[0]
            by = subscriber._diverter._writer
            book.all.append(Handled(key, number, now, memory.clock.time(), left < 0, entry, by))
            if left >= 0:
                raise TimeoutError

        subscriber: Any = memory.client().subscriber(
            "orders", "billing", handle, ordering="durable", retry_policy=policy
        )
        return subscriber.start()

    running = [start(), start()]
    for number in range(9):
        for key in "abc":
            memory.send("orders", b"%d" % number, key=key)
        memory.clock.advance(1 if number < 6 else 100)
        if number == 3:
            running.pop().stop("abandon")
            running.append(start())
    memory.clock.advance(200)
    for each in running:
        each.stop()
    topics = LaneTopics.of("orders", "billing")
    stream, log = (memory.messages(each) for each in (topics.stream, topics.log))
    memory.close()
    traces = lanes.traces(book, stream, log, 9)
    assert traces.keys() == {"a", "b"}
    check_none(traces, lanes.refused(traces, tmp_path))


def claimed(text: str) -> list[claims.Event]:
    """Return a trace: of each event its name, the process, and its message or messages.

    The end of a handler has the numbers of the deaths of which it settles the claims.
    """
    events = []
    for each in text.replace("!", "").split(","):
        kind, p, *messages = each.split()
        if kind == "commit":
            events.append(claims.Event(0, kind, p, hand=frozenset(messages)))
        elif kind == "ended":
            deaths = frozenset(map(int, messages[1:]))
            events.append(claims.Event(0, kind, p, messages[0], settles=deaths))
        else:
            events.append(claims.Event(0, kind, p, *messages))
    return [*events, claims.Event(0, "over", "a")]


TWICE = (
    "commit a poison good, began a poison, began a good, dies a poison, "
    "commit b poison good, began b poison, dies b poison, commit c poison good"
)
ALONE = "ask c, alone c poison, began c poison"
SPLIT = TWICE.replace("commit c poison good", "commit c poison, commit d good")
DEAD = "dies c poison, commit d poison good, dead d poison"
GOOD = "ask d, alone d good, began d good, ended d good, leave d"

#: The handler of "good" ends just before its process dies, and the broker does not know it.
LATE = TWICE.replace("began b poison", "began b good, ended b good, began b poison")
AGAIN = "ask c, alone c good, began c good, ended c good, leave c"
ENDED = f"{ALONE}, dies c poison, commit d poison, dead d poison"

CLAIMS = {
    "three crashes": f"{TWICE}, {ALONE}, {DEAD}, {GOOD}",
    "it comes again": f"{TWICE}, {ALONE}, {DEAD}, {GOOD}, commit d poison, dead d poison",
    "nothing is settled before a death": f"{LATE}, {AGAIN}, {ENDED}",
    "an acknowledgement is lost": "commit a poison good, began a good, ended a good, "
    "began a poison, dies a poison, commit b poison good, began b good, ended b good, "
    "began b poison, dies b poison, commit c poison, ask c, alone c poison, began c poison, "
    "dies c poison, commit d poison, dead d poison",
}
NO_CLAIMS = {
    "condemned after two crashes": f"{TWICE}, !dead c poison",
    "a suspect that is not alone": f"{TWICE}, !began c poison, dies c poison",
    "an innocent is condemned": f"{TWICE}, {ALONE}, dies c poison, commit d poison good, "
    "!dead d good",
    "a fourth crash": f"{TWICE}, {ALONE}, dies c poison, commit d poison good, ask d, "
    "!alone d poison, began d poison, dies d poison",
    "begun without a claim": "commit a good, !began a poison, dies a poison",
    "begun beside a suspect": f"{TWICE}, {ALONE}, !began c good, dies c poison",
    "a suspect whose claims are settled": f"{LATE.replace('ended b good', 'ended b good 0')}, "
    f"{AGAIN.replace('alone', '!alone')}, {ENDED}",
    "two suspects at a time": f"{SPLIT}, ask c, alone c poison, ask d, !alone d good",
    "lost": f"{TWICE}, {ALONE}, {DEAD}",
}


def test_claims_that_are_behaviours(tmp_path: Path) -> None:
    """Messages may come again at any time."""
    traces = {name: claimed(text) for name, text in CLAIMS.items()}
    check_none(traces, refused_claims(traces, tmp_path))


def test_claims_that_are_no_behaviours(tmp_path: Path) -> None:
    """The marked event is refused, and none before it."""
    traces = {name: claimed(text) for name, text in NO_CLAIMS.items()}
    places = {name: place(text) for name, text in NO_CLAIMS.items()}
    assert refused_claims(traces, tmp_path) == places


@attrs.frozen
class Stored:
    """A message of the topic of the claims, or a dead letter."""

    key: str
    at: float
    body: bytes

    def partition_key(self) -> str:
        return self.key

    def data(self) -> bytes:
        return self.body

    def publish_timestamp(self) -> int:
        return int(self.at * 1000)


def test_records_of_the_dead(tmp_path: Path) -> None:
    """One still has a message that has ended; one is stored after the death, and a later record."""

    def record(name: str, at: float, *hand: str, alone: str | None = None, turn: int = 0) -> Stored:
        args: Any = {"host": "vm", "pid": 1, "alone": alone, "turn": turn}
        return Stored(name, at, Record.of(name, hand, at=at, **args).data)

    a, b, c, d = (f"vm-{pid}-{pid}" for pid in range(1, 5))
    records = [
        record(a, 1, "good", "poison"),
        record(b, 2, "good", "poison"),
        record(c, 3),
        record(b, 2.1, "good", "poison"),
        record(c, 4, "good", "poison"),
        record(c, 4.1, "good", "poison", turn=1),
        record(c, 4.2, alone="good", turn=1),
        Stored(f"{a} good", 4.5, b"settled"),
        Stored(f"{b} good", 4.5, b"settled"),
        record(c, 4.6, "poison"),
        record(c, 4.7, "poison", turn=2),
        record(c, 4.8, alone="poison", turn=2),
        record(d, 6, "poison"),
    ]
    ledger = (
        "began 1.10 1 poison poison",
        "dies 1.20 1 poison poison",
        "began 2.01 2 good good",
        "ended 2.09 2 good good",  # the process does not know it before its record of 2.1
        "began 2.20 2 poison poison",
        "dies 2.30 2 poison poison",
        "began 4.30 3 good good",
        "ended 4.40 3 good good",
        "began 4.90 3 poison poison",
        "dies 5.00 3 poison poison",
    )
    (tmp_path / "ledger").write_text("\n".join(ledger), encoding="ascii")
    letters = [Stored("", 6.5, b"poison")]
    claims.check_claims(records, tmp_path / "ledger", letters, 3, tmp_path)


def refused_claims(traces: dict[str, list[claims.Event]], folder: Path) -> dict[str, int]:
    """Return which are refused, and where."""
    return claims.refused(traces, folder, messages={"poison", "good"}, crashes=3)
