"""Worker threads: take a message, call the handler, acknowledge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pulsar_retry.policy.outcomes import outcome_of
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.engine.work_queue import Slot, WorkQueue
from pulsar_retry.pull.workers.returned import Finisher
from pulsar_retry.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("pulsar_retry")


class WorkerThread:
    """A thread that handles messages one by one.

    Attributes:
        slot: What others see of it.
        thread: The thread; it does not run yet.
        error: What has ended the thread before its time, if anything.
    """

    def __init__(
        self,
        work_queue: WorkQueue,
        settler: Settler,
        handler: Callable[[Any], Any],
        *,
        slot: Slot,
        finisher: Finisher,
        close: Callable[[], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make a thread that does not run yet.

        Args:
            work_queue: Where messages are taken from.
            settler: Settles those that are not simply acknowledged.
            handler: Called with each message.
            slot: What others see of it.
            finisher: Finishes what handlers return.
            close: Called at the end.
            clock: Knows what the thread waits on.
        """
        self._work_queue = work_queue
        self._settler = settler
        self._handler = handler
        self._close = close
        self.slot = slot
        self._finisher = finisher
        self._sleep = clock.lock()
        self._sleep.acquire()
        self.error: BaseException | None = None
        # A daemon, for a handler that never returns must not keep the process from ending.
        self.thread = clock.thread(target=self._run, name="pulsar-retry-worker", daemon=True)

    def _run(self) -> None:
        try:
            while not self._work_queue.closed:
                self._handle_all()
                if self.slot.retired:
                    return
                if self._work_queue.lie_down(self._sleep.release):
                    self._sleep.acquire()
        except BaseException as error:  # noqa: BLE001 - the supervisor tells
            self.error = error
        finally:
            if self._close is not None:
                self._close()

    def _handle_all(self) -> None:
        """Handle what is ready until nothing is. Written out: it runs once per message."""
        work_queue, slot, handler, settler = (
            self._work_queue,
            self.slot,
            self._handler,
            self._settler,
        )
        finish = self._finisher.finish
        take, acknowledge = work_queue.ready.popleft, settler.consumer.acknowledge
        while not (work_queue.closed or slot.retired):
            try:
                item = take()
            except IndexError:
                slot.work = None
                return
            slot.work = item
            message, size, entry = item
            try:
                result = handler(message)
                if result is not None:
                    result = finish(result, slot)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the message failed
                settler.failed(slot, item, error)
                continue
            if result is not None and (outcome := outcome_of(result)) is not None:
                settler.failed(slot, item, outcome)
            elif entry is not None or slot.watched is item:
                settler.succeeded(slot, item)
            else:
                try:
                    acknowledge(message)
                    slot.done += 1
                    slot.size += size
                except Exception as error:  # noqa: BLE001 - the consumer is closed: it comes back
                    settler.not_settled(item, error)
