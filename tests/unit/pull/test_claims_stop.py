"""The end of the claims of a process."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pulsar_retry.pull.claims import claims as module
from pulsar_retry.pull.claims.claims import Claims
from pulsar_retry.pull.rules.claims import ClaimBook, TopicClaims


class Unreachable:
    """A topic whose broker does not answer."""

    name = me = "claims"
    since_trim = 0

    def __init__(self) -> None:
        self.book, self.lock, self.is_closed = ClaimBook(self.me), threading.Lock(), False

    def publish(self, *_arguments: Any) -> None:
        """Get no receipt."""

    def read(self) -> None:
        """Find nothing, after a moment."""
        time.sleep(0.01)

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


def test_the_last_record_has_its_time_from_the_stop_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker, handlers that are drained meanwhile do not make a stop longer."""
    monkeypatch.setattr(module, "_FAREWELL", 0.2)
    topic: Any = Unreachable()
    claims = Claims(topic, TopicClaims(), lambda: (), lambda _number: None)
    assert not claims.claim("message", lambda: None)
    claims.withdraw()  # the subscriber is asked to stop
    asked = time.monotonic()
    while time.monotonic() < asked + 0.2:  # its handlers end
        threading.Event().wait(0.01)
    monkeypatch.setattr(module, "_FAREWELL", 60)
    monkeypatch.setattr(claims._cond, "wait", lambda _seconds: pytest.fail("it waits again"))
    claims.close()
    assert topic.is_closed
