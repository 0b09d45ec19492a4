"""The application's own threads as workers: they take messages, and settle them when they like."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.engine.work_queue import Slot, Work, WorkQueue
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.raw import id_of, position_of

#: The highest `Callers.ahead`.
_LOW = 32


class Taken(NamedTuple):
    """A message that a caller has taken and not settled.

    Attributes:
        work: The message.
        crew: Where it was taken from.
    """

    work: Work
    crew: CallerCrew


class Callers:
    """Hands the messages of several subscribers out to whoever asks. Thread-safe.

    Attributes:
        closed: Whether nothing more is handed out.
        ahead: When fewer messages than this are ready, more are received.
    """

    def __init__(self, clock: Clock, ahead: int = _LOW) -> None:
        """Make it without messages; about *ahead* of them are received before they are taken."""
        self.closed = False
        self.ahead = min(ahead, _LOW)
        self._clock = clock
        self._crews: list[CallerCrew] = []
        self._turn = 0
        # Each operation on it is atomic, so that a message is settled once.
        self._taken: dict[Any, Taken] = {}

    def __len__(self) -> int:
        """Return how many messages were taken and are not settled."""
        return len(self._taken)

    def crew(self, work_queue: WorkQueue, settler: Settler) -> CallerCrew:
        """Return what a subscriber has in place of workers."""
        crew = CallerCrew(self, work_queue, settler)
        self._crews.append(crew)
        return crew

    def take(self, timeout: float | None) -> Any:
        """Return the next message; None if none comes in *timeout* seconds, or if this is closed.

        The subscribers take turns. None as *timeout* waits without a limit.
        """
        end = None if timeout is None else self._clock.monotonic() + timeout
        while not self.closed:
            if (message := self.take_now()) is not None:
                return message
            left = None if end is None else end - self._clock.monotonic()
            if left is not None and left <= 0:
                return None
            self._wait(left)
        return None

    def settles(self, message: Any) -> Taken | None:
        """Return a message, or the one of an id, for its caller to settle it; None: it is not here.

        Each message is returned once.

        Raises:
            TypeError: *message* is neither a message nor a message id.
        """
        try:
            position = position_of(id_of(message))
        except AttributeError:
            raise TypeError(f"expected a message or a message id, not {message!r}") from None
        return self._taken.pop(position, None)

    def keeps(self, taken: Taken) -> None:
        """Note that a caller still has a message, which could not be settled."""
        self._taken[position_of(id_of(taken.work.message))] = taken
        if self.closed:
            self._give_up()

    def gives_back(self, message: Any) -> None:
        """Take a message back, for the next caller."""
        if (taken := self.settles(message)) is not None:
            taken.crew.work_queue.ready.appendleft(taken.work)
            taken.crew.work_queue.wake(1)

    def close(self) -> None:
        """Hand nothing more out, and give up what was taken: it is not settled any more."""
        self.closed = True
        self._give_up()
        for crew in self._crews:
            crew.work_queue.wake(len(crew.work_queue.idle))

    def _give_up(self) -> None:
        with contextlib.suppress(KeyError):
            while True:
                work, crew = self._taken.popitem()[1]
                crew.work_queue.settled(work)

    def take_now(self) -> Any:
        """Return the next message, or None, without waiting."""
        self._turn += 1
        for crew in self._crews if self._turn % 2 else self._crews[::-1]:
            try:
                item = crew.work_queue.ready.popleft()
            except IndexError:
                continue
            return self._begun(Work.of(item), crew)
        return None

    def _begun(self, work: Work, crew: CallerCrew) -> Any:
        work_queue, position = crew.work_queue, position_of(id_of(work.message))
        before, self._taken[position] = self._taken.get(position), Taken(work, crew)
        if before is not None:  # its connection was lost, and the broker has delivered it again
            before.crew.settler.access.forget()
            before.crew.work_queue.settled(before.work)
        if self.closed:
            self._give_up()
            return None
        if len(work_queue.ready) + 1 == work_queue.low:
            work_queue.top_up()
        self._pass_on()
        if work.entry is not None:
            work.message._retries = work.entry.retries  # noqa: SLF001 - a mark of this package
        return work.message

    def _wait(self, timeout: float | None) -> None:
        """Wait until a message may be ready."""
        awake = self._clock.lock()
        awake.acquire()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # by another subscriber, at the same time
                awake.release()

        try:
            if self.lie_down(wake):
                awake.acquire(timeout=-1 if timeout is None else timeout)
        finally:
            self.get_up(wake)

    def lie_down(self, wake: Callable[[], object]) -> bool:
        """Have *wake* called when a message may be ready, or this is closed; tell whether to wait.

        It can be called more than once, on any thread, and may not block. Call `get_up` after that
        in any case.
        """
        return all(crew.work_queue.lie_down(wake) for crew in self._crews) and not self.closed

    def get_up(self, wake: Callable[[], object]) -> None:
        """Have *wake* not called any more."""
        for crew in self._crews:
            with contextlib.suppress(ValueError):
                crew.work_queue.idle.remove(wake)
        self._pass_on()

    def _pass_on(self) -> None:
        """Wake another caller for what is ready: one wake can stand for several messages."""
        for crew in self._crews:
            if crew.work_queue.ready and crew.work_queue.idle:
                crew.work_queue.wake(1)


class CallerCrew:
    """What a subscriber has in place of a `Crew`: callers, who need no supervision.

    Attributes:
        work_queue: Where messages are taken from.
        settler: Settles them.
        slot: Counts for all callers.
    """

    governor = None
    threads: Sequence[threading.Thread] = ()

    def __init__(self, callers: Callers, work_queue: WorkQueue, settler: Settler) -> None:
        self._callers = callers
        self.work_queue, self.settler, self.slot = work_queue, settler, Slot()
        work_queue.slots.append(self.slot)
        work_queue.low = callers.ahead

    def replace(self, slot: Slot) -> None:
        """Do nothing: no handler hangs."""

    def dead(self) -> list[tuple[Slot, BaseException]]:
        """Return nothing: there are no workers."""
        return []

    def lost(self) -> BaseException | None:
        """Return None: callers can always go on."""
        return None

    def ask(self, answer: Callable[[], None]) -> bool:  # noqa: ARG002 - as a crew has it
        """Return False: there is no event loop."""
        return False

    def close(self) -> None:
        """Hand nothing more out."""
        self._callers.close()
