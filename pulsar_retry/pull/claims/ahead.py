"""Which messages are claimed ahead, so that no handler waits for its claim."""

from __future__ import annotations

from pulsar_retry.letters.facts import facts_of
from pulsar_retry.pull.engine.ordered import OrderedLanes
from pulsar_retry.pull.engine.work_queue import WorkQueue

#: How many messages are wanted ahead at first.
_FIRST = 10


class Ahead:
    """Has messages received ahead, and tells which they are. Thread-safe."""

    def __init__(self, work_queue: WorkQueue, lanes: OrderedLanes | None, concurrency: int) -> None:
        self._work_queue = work_queue
        self._lanes = lanes
        self._most = min(concurrency, _FIRST)
        work_queue.low = max(work_queue.low, self._most)

    def next_up(self) -> list[str]:
        """Return the messages that are handled next, as many as are wanted ahead."""
        works = [item[0] for item in self._work_queue.ready.copy()]
        if self._lanes is not None:
            works += [work.message for work in self._lanes.next_up(self._most)]
        return [facts_of(message).chain for message in works]

    def adapt(self, begun: int) -> None:
        """Have so many messages more received ahead than are handled at a time."""
        self._most = sum(not slot.parked for slot in list(self._work_queue.slots)) + begun
        self._work_queue.low = self._most
        if len(self._work_queue.ready) < self._most:
            self._work_queue.notify()
