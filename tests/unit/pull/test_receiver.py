"""Who receives, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from pulsar_retry.pull.engine.hand import Hand, Slot
from pulsar_retry.pull.engine.receiver import Receiver
from pulsar_retry.pull.settings import FlowControl, Lease


class Queue:
    """A consumer that holds messages."""

    def __init__(self, count: int) -> None:
        self.left = count

    def receive(self, _timeout_millis: int) -> Any:
        """Return one of them."""
        self.left -= 1
        return SimpleNamespace(_message=SimpleNamespace(length=lambda: 10))


def receiver(hand: Hand, queue: Queue) -> Receiver:
    """Return what receives from *queue* for one worker."""
    hand.slots.append(Slot())
    settler: Any = SimpleNamespace(
        consumer=queue,
        handle=SimpleNamespace(
            cut=frozenset,
            in_hand=SimpleNamespace(main=SimpleNamespace(raw=None)),
            receiving=SimpleNamespace(flowing=lambda: None),
            whole=None,
        ),
        own_letters=SimpleNamespace(is_empty=True),
        fatal=None,
    )
    return Receiver(
        hand,
        settler,
        flow_control=FlowControl(),
        lease=Lease(),
        lanes=None,
        breaker=None,
        admission=None,
        probe=Future,
    )


def test_nothing_is_received_after_the_end() -> None:
    """A request to stop ends the receiving thread before it receives again."""
    hand, queue = Hand(), Queue(3)
    hand.is_stopping = True
    receiver(hand, queue).run()
    assert queue.left == 3


def test_what_has_an_order_stays_if_only_letters_are_cut_off() -> None:
    """The topic's messages would have to be asked for again, and come behind later ones."""
    receives: Any = receiver(Hand(), Queue(0))
    let_go: list[frozenset[bool]] = []
    receives._lanes = SimpleNamespace(
        begin_anew=lambda: let_go.append(receives._cut),
        clear=lambda _: [],
        is_empty=False,
        tick=lambda: 1.0,
    )
    receives._settler.take_down = list
    receives._supervise = lambda _: None
    for cut in ({True}, {True, False}, {False}, set(), {True}):
        receives._handle.cut = lambda cut=cut: frozenset(cut)
        receives.look()
    assert let_go == [{True, False}]
