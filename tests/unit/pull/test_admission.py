"""Workers on a loop behind an admission control, without a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from pulsar_retry.pull.engine.hand import Hand
from pulsar_retry.pull.workers.loop import LoopWorkers
from pulsar_retry.runtime.upstream import Message, message_of

COUNT = 40


def message() -> Message:
    """Return a message of ten bytes."""
    return message_of(SimpleNamespace(length=lambda: 10), None)


class Counted:
    """An admission control that lets out four messages at a time.

    Attributes:
        out: How many are out.
        done: How many were.
        sums: What waits, is out or is done, whenever a receiving thread might have asked.
    """

    def __init__(self, hand: Hand) -> None:
        self.out = self.done = 0
        self.sums: set[int] = set()
        self._hand = hand
        hand.notify = self.look  # type: ignore[method-assign]

    def look(self) -> None:
        """Add up, as a receiving thread does."""
        self.sums.add(len(self._hand.ready) + self.out + self.done)

    def may_begin(self) -> int:
        """Return how many may begin if four may be out."""
        self.look()
        return 4 - self.out

    async def handle(self, _message: Any) -> None:
        """Be done with one in a moment."""
        self.out += 1
        assert self.out <= 4
        await asyncio.sleep(0)
        self.out -= 1
        self.done += 1
        self._hand.wake(1)


async def run(hand: Hand, admission: Counted) -> None:
    """Run eight workers until nothing is ready."""
    settler: Any = SimpleNamespace(
        consumer=SimpleNamespace(acknowledge=lambda _: None),
        handle=SimpleNamespace(plan=SimpleNamespace(recipient=None)),
    )
    workers = LoopWorkers(hand, settler, admission.handle, 8, died=print, admission=admission)  # type: ignore[arg-type]
    working = asyncio.create_task(workers._work())
    while (hand.ready or admission.out) and not working.done():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    hand.close()
    await working


def test_each_message_is_counted_once() -> None:
    """On its way out, too; else one more than allowed would be received meanwhile."""
    hand = Hand()
    hand.ready.extend(message() for _ in range(COUNT))
    admission = Counted(hand)
    asyncio.run(run(hand, admission))
    assert ({COUNT}, COUNT) == (admission.sums, admission.done)


def test_what_is_taken_back_meanwhile_is_not_out() -> None:
    """The receiving thread lets go of what nobody has begun to handle, after a new connection."""
    hand = Hand()
    hand.ready.append(message())

    class Late(Counted):
        def may_begin(self) -> int:
            hand.unstarted()
            return super().may_begin()

    admission = Late(hand)
    asyncio.run(run(hand, admission))
    assert (0, 0) == (admission.out, admission.done)
