"""The demo's data: what is valid in it, and how the enrichment times out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.cli.demo import airports

GOOD = {
    "iata": "ORD",
    "name": "Chicago O'Hare International",
    "city": "Chicago",
    "state": "IL",
    "country": "USA",
    "latitude": "41.979595",
    "longitude": "-87.90446417",
}


def read(**changes: object) -> airports.Airport:
    """Read the good record with changes."""
    return airports.read(json.dumps({**GOOD, **changes}).encode())


def test_valid_record_has_numbers() -> None:
    """Text becomes an airport with coordinates in degrees."""
    name, city = "Chicago O'Hare International", "Chicago"
    assert read() == airports.Airport("ORD", name, city, "IL", 41.979595, -87.90446417)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"iata": "11IS"}, "not-an-iata-code"),
        ({"iata": ""}, "not-an-iata-code"),
        ({"country": "Thailand", "city": "NA"}, "foreign-country"),
        ({"city": "NA"}, "missing-city"),
        ({"state": ""}, "missing-city"),
        ({"latitude": "unknown"}, "not-a-number"),
        ({"longitude": None}, "not-a-number"),
        ({"latitude": "nan"}, "impossible-position"),
        ({"latitude": "91"}, "impossible-position"),
        ({"longitude": "87.9"}, "impossible-position"),
        ({"state": "GU", "longitude": "-144.8"}, "impossible-position"),
        ({"state": "AS", "latitude": "14.3"}, "impossible-position"),
    ],
)
def test_invalid_record_has_a_reason(changes: dict[str, object], reason: str) -> None:
    """Each kind of dirt has its own name."""
    with pytest.raises(airports.InvalidRecordError) as caught:
        read(**changes)
    assert caught.value.reason == reason


def test_territories_are_where_they_are() -> None:
    """Guam is valid in the east, American Samoa in the south."""
    assert read(state="GU", latitude="13.5", longitude="144.8").state == "GU"
    assert read(state="AS", latitude="-14.3", longitude="-170.7").state == "AS"


@given(limit=st.integers(1, 4000))
def test_limit_spreads_over_the_file(limit: int) -> None:
    """A limit gives that many different records, from the first one on, or all there are."""
    records = airports.load(limit)
    codes = [record["iata"] for record in records]
    assert len(set(codes)) == len(codes) == min(limit, 3376)
    assert codes[0] == "00M"


@given(code=st.text(min_size=1, max_size=4))
def test_time_outs_end_as_announced(code: str) -> None:
    """The service times out as often as the code says, then answers, in every run."""
    airport = airports.Airport(code, "", "", "", 0.0, -87.9)
    timeouts = airports.timeouts_of(code)
    for attempt in range(1, min(timeouts, 5) + 1):
        with pytest.raises(TimeoutError, match=f"attempt {attempt} timed out"):
            airports.time_zone(airport, attempt)
    assert airports.time_zone(airport, timeouts + 1) == -6
