"""Decides which messages may be handled at the same time: a suspect is handled alone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Ward:
    """Lets handlers in, in the order in which they come: many at a time, or one alone.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._is_alone = False
        self._waiting: deque[tuple[bool, Callable[[], object]]] = deque()

    def enter(self, *, alone: bool, wake: Callable[[], object]) -> bool:
        """Tell whether the handler may begin now. If not, *wake* is called when it is let in."""
        with self._lock:
            if not self._waiting and self._has_room(alone=alone):
                self._admit(alone=alone)
                return True
            self._waiting.append((alone, wake))
            return False

    def enter_at_once(self) -> bool:
        """Let a handler in that need not be alone, if it need not wait; tell whether it is in."""
        with self._lock:
            if self._waiting or self._is_alone:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        """Note that a handler has ended, and let in those that may begin now."""
        admitted = []
        with self._lock:
            self._inside -= 1
            self._is_alone = False
            while self._waiting and self._has_room(alone=self._waiting[0][0]):
                alone, wake = self._waiting.popleft()
                self._admit(alone=alone)
                admitted.append(wake)
        for wake in admitted:
            wake()

    def empty(self) -> None:
        """Wake all waiting handlers without letting them in, because the subscriber ends."""
        with self._lock:
            waiting = [wake for _, wake in self._waiting]
            self._waiting.clear()
        for wake in waiting:
            wake()

    def _has_room(self, *, alone: bool) -> bool:
        return not self._is_alone and not (alone and self._inside)

    def _admit(self, *, alone: bool) -> None:
        self._inside += 1
        self._is_alone = alone
