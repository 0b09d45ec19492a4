"""The stamp of a subscriber's letter: the order of all letters of one message.

A stamp is the time at which the letter was made, in microseconds since 1970. It is always greater
than the stamp of the letter that it was made from, and than those of the process's other letters of
the same message. So a wrong clock cannot make a letter look older than the one that it continues.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pulsar_retry.wire.properties import FAILURE_STAMP

#: int() alone would accept digits of other scripts, and raise an error for more than 4300 digits.
_STAMP = re.compile(r"[0-9]{1,19}", re.ASCII)


def next_stamp(now: float, *earlier: int) -> int:
    """Return a stamp that is greater than the *earlier* ones; *now* is in seconds since 1970."""
    return max(round(now * 1e6), max(earlier, default=-1) + 1)


def stamp_of(properties: Mapping[str, str]) -> int | None:
    """Return the stamp of a letter; None if it has none, or an invalid one."""
    text = properties.get(FAILURE_STAMP)
    return int(text) if text and _STAMP.fullmatch(text) else None


def made_at(properties: Mapping[str, str], published: float) -> float:
    """Return when a letter was made, in seconds since 1970; it is corrected by its stamp.

    Args:
        properties: The letter's properties.
        published: When it was published, by the clock of its publisher.
    """
    stamp = stamp_of(properties)
    return published if stamp is None else max(published, stamp / 1e6)
