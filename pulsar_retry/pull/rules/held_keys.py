"""Which keys are held, as the log of claims says. Pure.

`tests/model/Lanes.tla` models these rules, and docs/durable-lanes.md explains them.
"""

from __future__ import annotations

from collections.abc import Iterator

from pulsar_retry.wire.lanes import Head, LaneClaim, LaneOrder, Record, Removed


class ClaimView:
    """What somebody sees who has read the log up to some record. Not thread-safe.

    Attributes:
        heads: The last report about each key.
        orders: The operator's order for each key that has one.
        writers: The processes that have made claims.
    """

    def __init__(self) -> None:
        self.heads: dict[str, Head] = {}
        self.orders: dict[str, LaneOrder] = {}
        self.writers: set[str] = set()
        self._claims: dict[str, dict[str, tuple[int, LaneClaim]]] = {}
        self._read = 0

    def apply(self, record: Record | Removed) -> str:
        """Read the next record of the log, and return the key that it is about."""
        self._read += 1
        is_removed = isinstance(record, Removed)
        each = record.record if isinstance(record, Removed) else record
        match each:
            case LaneClaim():
                claims = self._claims.setdefault(each.lane, {})
                claims.pop(each.id, None)
                if not is_removed:
                    claims[each.id] = self._read, each
                    self.writers.add(each.by)
                elif not claims:
                    del self._claims[each.lane]
            case Head():
                self.heads.pop(each.lane, None)
                if not is_removed:
                    self.heads[each.lane] = each
            case LaneOrder():
                self.orders.pop(each.lane, None)
                if not is_removed:
                    self.orders[each.lane] = each
        return each.lane

    def held(self) -> Iterator[tuple[str, LaneClaim]]:
        """Yield each key that is held, with the oldest claim that is not released."""
        for lane, claims in list(self._claims.items()):
            yield lane, next(iter(claims.values()))[1]

    def claims(self) -> list[LaneClaim]:
        """Return all claims that are not released, those of each key in their order."""
        return [each for claims in self._claims.values() for _, each in claims.values()]

    def idle(self, before: float) -> list[str]:
        """Return the keys that may be held for nothing, because their last process has died.

        All their claims were made *before*. No first message is known that waits for a retry, or
        this retry was due *before*: perhaps it is not in the stream any more.
        """
        return [
            lane
            for lane, claims in self._claims.items()
            if all(each.since < before for _, each in claims.values())
            and not ((head := self.heads.get(lane)) is not None and head.waits(before))
        ]

    def __len__(self) -> int:
        """Return how many keys are held."""
        return len(self._claims)

    def is_held(self, lane: str) -> bool:
        """Tell whether a claim of *lane* is not released."""
        return lane in self._claims

    def is_live(self, lane: str, claim: str) -> bool:
        """Tell whether this claim is not released."""
        return claim in self._claims.get(lane, ())

    def newest(self, lane: str) -> str:
        """Return the id of the newest claim that is not released; empty if there is none.

        Only this claim counts: whoever made an older one has lost the key meanwhile.
        """
        return next(reversed(self._claims.get(lane, {"": (0, None)})))

    def place(self, lane: str, claim: str) -> int:
        """Return the place of a claim that is not released; 0 if it is released."""
        place, _ = self._claims.get(lane, {}).get(claim, (0, None))
        return place

    def to_release(self, lane: str, claim: str, under: int) -> list[LaneClaim]:
        """Return the claims to release when everything is ended that a process has published.

        Args:
            lane: The key.
            claim: The newest claim of the process.
            under: The place of the claim that it had when it published the last entry. All entries
                that are behind older claims are before this one. Those behind newer ones may not
                be, so those claims stay.
        """
        claims = self._claims.get(lane, {})
        return [each for id_, (place, each) in claims.items() if place <= under or id_ == claim]
