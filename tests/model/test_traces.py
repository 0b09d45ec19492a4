"""Traces that are behaviours of the models, and traces that are not; docs/protocol.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.wire.lanes import LANE_ENTRY, LaneTopics
from support.model import lanes
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
