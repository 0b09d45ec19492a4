"""The demo's input: the US airports of `vega_datasets`, including their errors.

Every value is text, also numbers. Some airports have no city and no state (``NA``), some are in
other countries, and some codes are not airport codes. In the Pacific territories longitudes and
latitudes have lost their sign, which puts Guam into the open sea. Only the time-outs of the
enrichment are invented; they are the same in every run.
"""

from __future__ import annotations

import csv
import hashlib
import json
from bisect import bisect_right
from typing import Any

import attrs

__all__ = ["Airport", "InvalidRecordError", "load", "read", "time_zone", "timeouts_of"]

#: A row of the data set, unchanged: from columns to texts.
Record = dict[str, str]

_CODE_LENGTH = 3
_MISSING = ("", "NA")
_EASTERN = {"GU", "CQ"}  # Guam, Northern Mariana Islands
_SOUTHERN = {"AS"}  # American Samoa

#: The share of records by the number of time-outs; below the first bound no attempt succeeds.
_BOUNDS = (0.006, 0.02, 0.06, 0.20)
_TIMEOUTS = (1_000_000, 3, 2, 1, 0)


class InvalidRecordError(ValueError):
    """A record that stays invalid with every retry.

    Attributes:
        reason: A short, stable name for the problem, which becomes the dead letter's reason.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@attrs.frozen
class Airport:
    """A valid record. Latitude and longitude are in degrees, north and east positive."""

    code: str
    name: str
    city: str
    state: str
    latitude: float
    longitude: float


def load(limit: int | None = None) -> list[Record]:
    """Return the records of the data set, or *limit* of them spread evenly over the file.

    Raises:
        ModuleNotFoundError: `vega_datasets` is not installed.
    """
    from vega_datasets import local_data  # optional, and slow to import

    text: str = local_data.airports.raw().decode()
    records = list(csv.DictReader(text.splitlines()))
    count = len(records) if limit is None else min(limit, len(records))
    return [records[position * len(records) // count] for position in range(count)]


def read(payload: bytes) -> Airport:
    """Return the airport in a message's *payload*.

    Raises:
        InvalidRecordError: the record is invalid.
    """
    record: dict[str, Any] = json.loads(payload)
    code, name, state = record["iata"], record["name"], record["state"]
    if len(code) != _CODE_LENGTH:
        length = f"{len(code)} characters, an IATA code has {_CODE_LENGTH}"
        raise InvalidRecordError("not-an-iata-code", f"{code!r} has {length}")
    if record["country"] != "USA":
        raise InvalidRecordError("foreign-country", f"{name} is in {record['country']}")
    if record["city"] in _MISSING or state in _MISSING:
        raise InvalidRecordError("missing-city", f"{name} has no city or no state")
    latitude, longitude = _degrees(record, "latitude"), _degrees(record, "longitude")
    if not _is_possible(state, latitude, longitude):
        raise InvalidRecordError(
            "impossible-position", f"{name}, {state}, can't be at {latitude:.2f}, {longitude:.2f}"
        )
    return Airport(code, name, record["city"], state, latitude, longitude)


def _degrees(record: dict[str, Any], column: str) -> float:
    try:
        return float(record[column])
    except (TypeError, ValueError):
        raise InvalidRecordError("not-a-number", f"{column} is {record[column]!r}") from None


def _is_possible(state: str, latitude: float, longitude: float) -> bool:
    """Tell whether a place in *state* may have this position. Not-a-number is never possible."""
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):  # noqa: PLR2004 - the globe
        return False
    return not (
        (state in _EASTERN and longitude < 0)
        or (state not in _EASTERN and longitude > 0)
        or (state in _SOUTHERN and latitude > 0)
    )


def time_zone(airport: Airport, attempt: int) -> int:
    """Ask an unreliable service for an airport's offset from UTC in hours.

    There is no real service: the answer is the nautical time zone. Whether it times out depends
    only on the airport's code and on the *attempt*, so every run is the same.

    Raises:
        TimeoutError: the service did not answer in time. The next attempt may succeed.
    """
    if attempt <= timeouts_of(airport.code):
        raise TimeoutError(f"no time zone for {airport.code}: attempt {attempt} timed out")
    return round(airport.longitude / 15)


def timeouts_of(code: str) -> int:
    """Return how many attempts time out for this code before one succeeds."""
    digest = hashlib.sha256(code.encode()).digest()
    draw = int.from_bytes(digest[:8]) / 2**64
    return _TIMEOUTS[bisect_right(_BOUNDS, draw)]
