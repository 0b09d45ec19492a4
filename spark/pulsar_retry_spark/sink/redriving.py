"""The headers of rows that are brought back from a dead-letter topic. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_retry.wire import properties as wire

#: Headers that no longer apply: the earlier retry topic, the mark of a truncated payload (it may be
#: repaired), and the earlier redrive with its origin.
_STALE = frozenset({wire.RETRY_TOPIC, wire.FAILURE_TRUNCATED, wire.REDRIVEN_FROM, wire.REDRIVE_ID})
_STALE_WITH_SUBSCRIPTION = _STALE | {wire.REAL_SUBSCRIPTION}


def redriven(
    headers: Mapping[str, str], turn: int, letter: str | None, *, subscription: str | None
) -> dict[str, str]:
    """Return the headers of a row that is brought back.

    Args:
        headers: The row's headers as a dead letter.
        turn: The number of this redrive, from 1.
        letter: The topic and id of the dead letter, if they are known.
        subscription: The subscription whose letter the row becomes. None if it is not known: then
            the row stays a letter of its earlier subscription.
    """
    stale = _STALE if subscription is None else _STALE_WITH_SUBSCRIPTION
    fresh = {name: text for name, text in headers.items() if name not in stale}
    fresh[wire.REDRIVE_COUNT] = str(turn)
    if letter is not None:
        fresh[wire.REDRIVEN_FROM] = letter
    return fresh
