"""The demo's records and its account: each record counts once, where it ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.cli import demo
from pulsar_retry.cli.demo import Account

GOOD = {
    "iata": "ORD",
    "city": "Chicago",
    "state": "IL",
    "country": "USA",
    "latitude": "41.979595",
    "longitude": "-87.90446417",
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"state": "GU", "latitude": "13.5", "longitude": "144.8"}, None),
        ({"state": "AS", "latitude": "-14.3", "longitude": "-170.7"}, None),
        ({"iata": "11IS"}, "not-an-iata-code"),
        ({"country": "Thailand", "city": "NA"}, "foreign-country"),
        ({"city": "NA"}, "missing-city"),
        ({"longitude": "87.9"}, "impossible-position"),
        ({"state": "GU", "longitude": "-144.8"}, "impossible-position"),
        ({"state": "AS", "latitude": "14.3"}, "impossible-position"),
    ],
)
def test_each_kind_of_dirt_has_its_own_name(changes: dict[str, str], reason: str | None) -> None:
    """And territories are where they are."""
    if reason is None:
        demo.check(GOOD | changes)
        return
    with pytest.raises(pr.Reject) as caught:
        demo.check(GOOD | changes)
    assert reason == caught.value.reason


def test_time_outs_are_the_same_in_every_run() -> None:
    """So many records of the data need each number of attempts."""
    needed = dict.fromkeys((1, 2, 3, 4, None), 0)
    for record in demo.load(None):
        for attempt in needed:
            try:
                demo.time_zone(record, attempt or 1_000)
            except TimeoutError:
                continue
            needed[attempt] += 1
            break
        else:
            needed[None] += 1
    assert [2673, 490, 132, 56, 25] == list(needed.values())


def message(key: str, **properties: str) -> Any:
    """Return a message as it is read back."""
    return SimpleNamespace(partition_key=lambda: key, properties=lambda: properties)


def result(key: str, retries: int = 0) -> Any:
    """Return a result."""
    return message(key, retries=str(retries))


def dead(key: str, reason: str = "missing-city", **properties: str) -> Any:
    """Return a dead letter."""
    return message(key, FAILURE_REASON=reason, **properties)


def test_balanced() -> None:
    """Everything ended in exactly one place; there is a sample of each frequent reason."""
    letters = [dead("d"), dead("c", "retries-exhausted", RECONSUMETIMES="4"), dead("e")]
    found = Account.of(set("abcde"), [result("a"), result("b", 2)], letters)
    assert found.is_balanced
    assert {"missing-city": 2, "retries-exhausted": 1} == found.reasons
    assert {2: 2, 3: 2, 4: 1} == found.retried
    assert ["d", "c"] == list(found.samples)


@given(
    processed=st.lists(st.sampled_from("abcdef")),
    letters=st.lists(st.sampled_from("abcdef")),
    published=st.sets(st.sampled_from("abcdef")),
)
def test_balanced_means_a_partition(
    processed: list[str], letters: list[str], published: set[str]
) -> None:
    """Balanced exactly when the two places split what was published, copies aside."""
    found = Account.of(published, map(result, processed), map(dead, letters))
    ended, both = set(processed) | set(letters), set(processed) & set(letters)
    assert found.is_balanced == (ended == published and not both)
    sets = (published - ended, both, ended - published)
    assert list(map(sorted, sets)) == list(found.faults.values())
    assert found.copies == len(processed) + len(letters) - len(set(processed)) - len(set(letters))
