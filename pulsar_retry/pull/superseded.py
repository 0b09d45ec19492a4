"""Letters that a later one of the same message has made superfluous. Pure.

pulsar-client sends acknowledgements in groups, up to a tenth of a second late. A process that is
killed in that moment leaves both: the letter that it has published, and the message that it has not
acknowledged. Whoever gets that message publishes another letter, and without more ado the message
would have all of its attempts twice.

So a process remembers the last letter that it has published of a message. An older letter of
another process with no higher count stands for the same attempts: it is dropped. This can lose
nothing, also when a subscription is set back: the newer letter is handled after the older one was
published. An original is never dropped, for it may come again on purpose; nor is a letter of one's
own, so that no clock that is set back can make it look old.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from typing import NamedTuple

#: A property of letters: which process has published it.
FAILURE_WRITER = "FAILURE_WRITER"

#: Messages that are remembered, the latest.
_MOST = 10_000


class _Published(NamedTuple):
    """A letter.

    Attributes:
        times: How often the message was reconsumed, as it says.
        at: When it was published at the earliest, in seconds since 1970.
    """

    times: int
    at: float


class OwnLetters:
    """The last letters that this process has published. Thread-safe.

    Attributes:
        writer: What it writes on its letters.
    """

    def __init__(self, most: int = _MOST) -> None:
        self.writer = uuid.uuid4().hex[:16]
        self._letters: OrderedDict[str, _Published] = OrderedDict()
        self._most = most
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._letters)

    def add(self, key: str, count: int, time: float) -> None:
        """Take note of a letter.

        Args:
            key: What tells the message from others, the same for its letters.
            count: The letter's reconsume count.
            time: When it was published at the earliest, in seconds since 1970.
        """
        with self._lock:
            self._letters[key] = _Published(count, time)
            self._letters.move_to_end(key)
            if len(self._letters) > self._most:
                self._letters.popitem(last=False)

    def supersede(self, key: str, count: int, time: float, writer: str | None) -> bool:
        """Tell whether a letter of that count, published at that time, is superfluous."""
        own = self._letters.get(key)
        if own is None or writer in {None, self.writer}:
            return False
        return count <= own.times and time < own.at
