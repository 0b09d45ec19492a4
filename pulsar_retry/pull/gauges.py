"""How a subscriber is now, for metrics."""

from __future__ import annotations

from pulsar_retry.pull.board import Board
from pulsar_retry.pull.flow import FlowControl
from pulsar_retry.pull.lease import LeaseClock


class Gauges:
    """Tells how a subscriber is now. Thread-safe."""

    def __init__(self, board: Board, limits: FlowControl, clock: LeaseClock) -> None:
        self._board = board
        self._limits = limits
        self._clock = clock

    def gauges(self) -> dict[str, float]:
        """Return what is in hand, the load, and the seconds of a lease."""
        count, size = self._board.held()
        count, size = max(0, count), max(0, size)  # a worker may be ahead of the receiving thread
        return {
            "inflight": float(count),
            "load_ratio": self._limits.load(count, size),
            "lease_seconds": self._clock.duration(),
        }
