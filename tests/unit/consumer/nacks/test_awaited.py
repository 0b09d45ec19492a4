"""When chunked messages that do not come are asked for again, in virtual time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pulsar_retry.consumer.nacks.awaited import (
    CALM,
    LONGEST,
    MOST_ROUNDS,
    MOST_TIMES,
    QUIET,
    Awaited,
    State,
)
from pulsar_retry.consumer.nacks.chunks import ChunkedId

ONE, OTHER = (ChunkedId((5, n), (5, n + 1), -1, ("orders",)) for n in (0, 2))
PLAIN = object()

WAITING, FREE, BUSY = State(is_waiting=True), State(is_waiting=True, is_free=True), State()


def played(awaited: Awaited, until: float, state: State, start: float = 0.0) -> dict[float, Any]:
    """Return what is asked for, and when; ``all`` is everything."""
    now, asked = start, {}
    while (wait := awaited.next_look(now)) is not None and now + wait <= until:
        now += max(wait, 0.01)
        lost = awaited.lost(now, state)
        if lost.ids or lost.everything:
            asked[round(now, 6)] = "all" if lost.everything else lost.ids
    return asked


def test_what_does_not_come_is_asked_for_again_later_and_later() -> None:
    """And in the end no more: another consumer may have it."""
    awaited = Awaited(is_of_all=False)
    awaited.ask([ONE, PLAIN], 0.0)
    asked = played(awaited, 1000, WAITING)
    assert [5, 15, 35, 75, 135, 195, 255, 315] == list(asked)
    assert all(ids == [ONE] for ids in asked.values())
    assert MOST_TIMES == len(asked)


def test_what_comes_is_not_asked_for() -> None:
    """Only the other one."""
    awaited = Awaited(is_of_all=False)
    awaited.ask([ONE, OTHER], 0.0)
    awaited.come(ONE, 0.5)
    assert {5.5: [OTHER]} == played(awaited, 9, WAITING)
    awaited.come(OTHER, 9)
    assert {} == played(awaited, 1000, WAITING, 9)


def test_while_the_application_is_busy_it_may_wait_in_pulsar_client() -> None:
    """A minute, then two, then four."""
    awaited = Awaited(is_of_all=False)
    awaited.ask([ONE], 0.0)
    asked = list(played(awaited, 7 * LONGEST + 30, BUSY))
    assert asked == pytest.approx([LONGEST, 3 * LONGEST, 7 * LONGEST], abs=10)


def test_while_messages_come_nothing_is_lost() -> None:
    """It counts from the last one on."""
    awaited = Awaited(is_of_all=False)
    awaited.ask([ONE], 0.0)
    for second in range(1, 30):
        awaited.come(PLAIN, float(second))
        assert not awaited.lost(second + 0.9, WAITING).ids
    assert {29 + CALM: [ONE]} == played(awaited, 36, WAITING, 29.9)


@pytest.mark.parametrize("is_of_all", [False, True])
def test_who_has_seen_a_chunked_message_asks_for_everything(is_of_all: bool) -> None:
    """Again and again, once a minute in the end: what is lost is known to nobody."""
    awaited = Awaited(is_of_all=is_of_all)
    awaited.come(ONE, 0.0)
    asked = played(awaited, 1000, FREE)
    assert {"all"} == set(asked.values())
    assert next(iter(asked)) == QUIET + 0.5
    times = list(asked)
    assert max(b - a for a, b in itertools.pairwise(times)) <= LONGEST + 1
    assert 15 < len(times) < 25


@pytest.mark.parametrize("state", [WAITING, BUSY])
def test_everything_is_asked_for_only_by_who_holds_nothing(state: State) -> None:
    """The rest would come twice."""
    awaited = Awaited(is_of_all=True)
    awaited.come(ONE, 0.0)
    assert {} == played(awaited, 300, state)


def test_where_no_chunked_message_was_seen() -> None:
    """A redelivery of everything may have lost the first one; without one nothing is asked for."""
    awaited = Awaited(is_of_all=True)
    awaited.come(PLAIN, 0.0)
    assert awaited.next_look(0.0) is None
    awaited.ask([PLAIN], 0.0)
    assert MOST_ROUNDS == len(played(awaited, 1000, FREE))
    shared = Awaited(is_of_all=False)
    shared.ask([PLAIN], 0.0)
    assert shared.next_look(0.0) is None


def test_nothing_is_awaited_after_a_seek() -> None:
    """The broker delivers from there on."""
    awaited = Awaited(is_of_all=False)
    awaited.ask([ONE], 0.0)
    awaited.forget()
    assert {} == played(awaited, 100, WAITING)
