"""Worker threads: each takes a message, calls the handler, and acknowledges."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from pulsar_retry.policy.outcomes import outcome_of
from pulsar_retry.pull.engine.hand import HANDLED_BY, Hand, Slot
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.runtime.clock import Clock


def start_thread(
    hand: Hand,
    settler: Settler,
    handler: Callable[[Any], Any],
    *,
    slot: Slot,
    died: Callable[[BaseException], None],
    close: Callable[[], None] | None,
    clock: Clock,
) -> None:
    """Start a thread that handles messages one by one.

    Args:
        hand: Where messages are taken from.
        settler: Settles the messages that are not simply acknowledged.
        handler: Called with each message.
        slot: The state of the worker, as other threads see it.
        died: Called with an error that ends the thread too early.
        close: Called at the end.
        clock: Makes the thread, and the lock that it waits on.
    """
    sleep = clock.lock()
    sleep.acquire()

    def run() -> None:
        HANDLED_BY.set(hand)
        try:
            while not hand.closed:
                _handle_all(hand, settler, handler, slot)
                if slot.retired:
                    return
                if hand.lie_down(sleep.release):
                    sleep.acquire()
        except BaseException as error:  # noqa: BLE001 - it ends the subscription
            died(error)
        finally:
            if close is not None:
                close()

    # A daemon thread, because a handler that never returns must not keep the process alive.
    clock.thread(target=run, name="pulsar-retry-worker", daemon=True).start()


def _handle_all(hand: Hand, settler: Settler, handler: Callable[[Any], Any], slot: Slot) -> None:
    """Handle messages until none is ready. Written inline, because it runs once per message.

    Each handler has a context of its own, as on an event loop: what it binds, for the log say, is
    not there with the next message.
    """
    take, acknowledge = hand.ready.popleft, settler.consumer.acknowledge
    count = hand.acknowledged.append
    while not (hand.closed or slot.retired):
        try:
            message = take()
        except IndexError:
            slot.work = None
            return
        slot.work = message
        try:
            outcome = copy_context().run(handler, message)
            if outcome is not None:
                outcome = outcome_of(outcome)
        except BaseException as error:  # noqa: BLE001 - each error fails the attempt
            settler.failed(slot, message, error)
            continue
        if outcome is not None:
            settler.failed(slot, message, outcome)
        elif message.place is not None or slot.watched is message:
            settler.succeeded(slot, message)
        else:
            try:
                acknowledge(message)
                count(message._message.length())
            except Exception as error:  # noqa: BLE001 - the consumer is closed: it is redelivered
                settler.not_settled(message, error)
