"""What rows carry that are brought back from a dead-letter topic, and what they leave. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_retry.wire import properties as wire

#: Where a row was to be retried, that it was cut to fit (it may be mended), and which redrive took
#: it from where before.
_STALE = frozenset({wire.RETRY_TOPIC, wire.FAILURE_TRUNCATED, wire.REDRIVEN_FROM, wire.REDRIVE_ID})
_STALE_OF_ANOTHERS = _STALE | {wire.REAL_SUBSCRIPTION}


def redriven(
    headers: Mapping[str, str], turn: int, letter: str | None, *, subscription: str | None
) -> dict[str, str]:
    """Return the headers of a row that is brought back.

    Args:
        headers: Those that it had as a dead letter.
        turn: How often that is now.
        letter: Topic and id of the dead letter, if they are known.
        subscription: Whose letter it becomes; None: nobody says, so it stays whose it was.
    """
    stale = _STALE if subscription is None else _STALE_OF_ANOTHERS
    fresh = {name: text for name, text in headers.items() if name not in stale}
    fresh[wire.REDRIVE_COUNT] = str(turn)
    if letter is not None:
        fresh[wire.REDRIVEN_FROM] = letter
    return fresh
