"""Who receives, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from pulsar_retry.pull.engine.hand import Hand, Slot
from pulsar_retry.pull.engine.receiver import Receiver
from pulsar_retry.pull.settings import FlowControl, Lease


class Queue:
    """A consumer that holds messages, or raises what it is told to."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.error: Exception | None = None

    def receive(self, timeout_millis: int) -> Any:
        """Return one of them; nobody may wait here."""
        assert timeout_millis == 0
        if self.error is not None:
            raise self.error
        if not self.left:
            raise pulsar.Timeout("Pulsar error: Timeout")
        self.left -= 1
        return SimpleNamespace(_message=SimpleNamespace(length=lambda: 10))


def receiver(
    hand: Hand,
    queue: Queue,
    flow_control: FlowControl | None = None,
    *,
    begun: bool = True,
) -> Receiver:
    """Return what receives from *queue* for one worker, as if its thread had *begun*."""
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
    made = Receiver(
        hand,
        settler,
        flow_control=flow_control or FlowControl(),
        lease=Lease(),
        lanes=None,
        breaker=None,
        admission=None,
        probe=Future,
    )
    if begun:
        hand.top_up = made.top_up
    return made


@pytest.mark.parametrize("others", [0, 1])
def test_a_worker_without_work_takes_the_first(others: int) -> None:
    """No other worker is woken for it; the receiving thread is, if others sleep."""
    hand, woken = Hand(), []
    receiver(hand, Queue(4))
    hand.idle.extend([lambda: woken.append(1)] * others)
    hand.top_up(1)
    assert (1, 10) == hand.in_hand()
    assert not woken
    assert hand.wait(0) == bool(others)


def test_errors_are_the_receiving_threads() -> None:
    """A worker must go on; it wakes who knows what to do."""
    hand, queue = Hand(), Queue(1)
    queue.error = pulsar.AlreadyClosed("Pulsar error: AlreadyClosed")
    receiver(hand, queue)
    hand.top_up()
    assert hand.wait(0)
    assert (0, 0) == hand.in_hand()


def test_nothing_is_received_before_the_receiving_thread_runs() -> None:
    """The subscriber is not ready: it could not tell that its handler calls it, for example."""
    hand, queue = Hand(), Queue(4)
    receiver(hand, queue, begun=False)
    hand.top_up(1)
    assert queue.left == 4


def test_nothing_is_received_after_the_end() -> None:
    """Nor while the receiving thread is at it: what it counts, it alone has received."""
    hand, queue = Hand(), Queue(3)
    hand.is_stopping = True
    receiver(hand, queue).run()
    hand.top_up()
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
