"""Whether the broker has delivered all letters of a redrive."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.errors import RedriveError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, cursor_of
from pulsar_retry.replay.redriving.report import WHY_UNREADABLE

#: Seconds to wait for what the broker has sent, if nothing comes.
_ON_ITS_WAY = 10.0
#: Seconds for which a consumer asks for no more letters until it is taken as one that never will.
_FULL = 30.0


class DeliveryWatch:
    """Finds out that no more letters of a redrive come from a partition. Not thread-safe.

    The broker's statistics are ahead of the consumer: what was sent may still be on its way, and a
    consumer that has just connected again has not asked for letters yet. So a conclusion is drawn
    only if they stay the same for some seconds.
    """

    def __init__(self, admin: AdminClient, subscription: str, ends: Mapping[str, Position]) -> None:
        """Watch the only consumer of a subscription; *ends* has the last letter per partition."""
        self._admin = admin
        self._subscription = subscription
        self._ends = ends
        self._states: dict[str, tuple[Hashable, float]] = {}

    def is_over(self, topic: str, last: EntryPlace | None) -> bool:
        """Tell whether no more letters of the redrive come. Call it if none came for a while.

        Args:
            topic: The full name of the partition.
            last: The last letter that has come from it.

        Raises:
            AdminError: the REST API is unreachable, or refuses the request.
            RedriveError: pulsar-client holds as many letters as it may, and can read none of them.
        """
        stats = self._admin.topics.internal_stats(topic)
        cursor = cursor_of(stats, self._subscription)
        if cursor is None:
            raise RedriveError(f"the subscription {self._subscription} of {topic} no longer exists")
        read, end = EntryPlace.parse(cursor["readPosition"]), EntryPlace.of(self._ends[topic])
        if read > end:
            log = attrs.evolve(Log.read(stats), last=end)
            left = AckState.read(cursor, log).unacknowledged(log)
            # Letters come in order, so what is before the last one was delivered or is unreadable.
            is_under_way = any((last is None or each > last) and each <= end for each in left)
            return not is_under_way or self._stays(topic, (read, last), _ON_ITS_WAY)
        subscription = self._admin.topics.stats(topic)["subscriptions"][self._subscription]
        if not any(each["availablePermits"] <= 0 for each in subscription["consumers"]):
            self._states.pop(topic, None)
        elif self._stays(topic, (read, last), _FULL):
            raise RedriveError(
                f"{topic}: too many letters before the others cannot be read: {WHY_UNREADABLE}"
            )
        return False

    def _stays(self, topic: str, state: Hashable, seconds: float) -> bool:
        """Tell whether a partition is in this state, at each call, for some *seconds*."""
        now = time.monotonic()
        known, since = self._states.get(topic, (None, now))
        if known != state:
            self._states[topic] = state, now
        return known == state and now - since >= seconds
