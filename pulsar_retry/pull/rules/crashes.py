"""Messages that kill the worker process which handles them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_retry.letters.facts import Facts
from pulsar_retry.policy.outcomes import Reject
from pulsar_retry.wire.properties import FAILURE_CRASHES, count_of

#: The reason of a dead letter whose message has killed too many worker processes.
CRASH_LOOP = "crash-loop"

#: A message that has killed so many worker processes is not handled again.
MAX_CRASHES = 3


class CrashLoop(Reject):
    """The message has killed too many worker processes.

    Attributes:
        crashes: How many.
    """

    def __init__(self, crashes: int) -> None:
        super().__init__(CRASH_LOOP)
        self.crashes = crashes


def check_crashes(facts: Facts) -> None:
    """Check that a message may be handled by a worker process.

    Raises:
        CrashLoop: it has killed too many of them.
    """
    crashes = crashes_of(facts.properties) + facts.crashes
    if crashes >= MAX_CRASHES:
        raise CrashLoop(crashes)


def crashes_of(properties: Mapping[str, str]) -> int:
    """Return how many worker processes a message has killed, as its letter says."""
    return count_of(properties.get(FAILURE_CRASHES)) or 0
