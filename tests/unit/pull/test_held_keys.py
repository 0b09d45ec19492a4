"""What the log of durable lanes says."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.pull.rules.held_keys import ClaimView
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.wire.lanes import Head, LaneClaim, LaneOrder, Removed

A, B, C = (LaneClaim("k", name, since=place) for place, name in enumerate("abc"))


def read(*records: LaneClaim | Head | LaneOrder | Removed) -> ClaimView:
    """Return what somebody sees who has read *records*."""
    view = ClaimView()
    for record in records:
        assert view.apply(record) == "k"
    return view


def test_a_key_is_held_until_its_last_claim_is_released() -> None:
    """A release of one claim leaves the others, whatever their order."""
    view = read(A, B, Removed(A))
    assert (view.is_held("k"), view.newest("k"), view.is_live("k", "a")) == (True, "b", False)
    view = read(A, B, Removed(B))
    assert (view.newest("k"), [*view.held()], len(view)) == ("a", [("k", A)], 1)
    view = read(A, Removed(A), Removed(B))
    assert (view.is_held("k"), view.newest("k"), len(view)) == (False, "", 0)


def test_a_claim_that_is_stored_again_is_the_newest() -> None:
    """So nobody with an older claim can release it."""
    view = read(A, B, A)
    assert view.newest("k") == "a"
    assert view.to_release("k", "b", view.place("k", "b")) == [B]


def test_a_release_leaves_claims_that_are_newer_than_the_last_entry() -> None:
    """Somebody may have published behind it: the model finds an inversion otherwise."""
    view = read(A, B)
    under = view.place("k", "b")
    view.apply(C)
    own = LaneClaim("k", "again")
    view.apply(own)
    assert view.to_release("k", "again", under) == [A, B, own]
    assert view.to_release("k", "again", 0) == [own]


def test_the_last_report_and_order_count() -> None:
    """Until they are removed."""
    view = read(Head("k", attempts=1), Head("k", attempts=2), LaneOrder("k", "retry", "w:1"))
    assert view.heads["k"].attempts == 2
    assert view.orders["k"].action == "retry"
    view.apply(Removed(Head("k")))
    view.apply(Removed(LaneOrder("k", "retry", "")))
    assert not view.heads
    assert not view.orders


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("ordering", {"ordering": "strict"}),
        ("on_exhausted", {"on_exhausted": "drop"}),
        ("topic", {"topic": ["a", "b"]}),
        ("consumer_type", {"consumer_type": pulsar.ConsumerType.Failover}),
        ("redelivery", {"redelivery": "nack"}),
    ],
)
def test_what_durable_lanes_do_not_accept(argument: str, options: dict[str, Any]) -> None:
    """It is refused before anything is opened."""
    with MemoryBroker().client() as client, pytest.raises(pr.ConfigError, match=argument):
        given = {"topic": "a", "ordering": "durable", **options}
        client.subscriber(subscription="s", handler=print, **given)
