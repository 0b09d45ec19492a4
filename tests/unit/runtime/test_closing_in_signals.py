"""Signal handlers that close what they have interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from pulsar_retry.errors import shown
from pulsar_retry.runtime import exiting
from pulsar_retry.runtime.exiting import closes


@pytest.fixture
def on_signal() -> Iterator[Callable[[Any], object]]:
    """Return a function that sets the handler of SIGTERM, for this test only."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def interrupt(_value: object = None) -> str:
    """Have the handler called, as if the signal came just now."""
    signal.raise_signal(signal.SIGTERM)
    return ""


def test_what_is_interrupted_can_end(on_signal: Callable[[Any], object]) -> None:
    """A method of the package holds a lock that closing needs. Calls keep their order."""
    lock, done, calls = threading.Lock(), threading.Event(), list[str]()

    @closes
    def close(name: str) -> str:
        with lock:
            calls.append(name)
        if name == "client":
            done.set()
        return name

    results = []
    on_signal(lambda *_: results.extend((close("subscriber"), close("client"))))
    with lock:
        shown(None, interrupt)  # a function of the package is interrupted
        assert [None, None] == results
        assert not calls
    assert done.wait(120)
    assert ["subscriber", "client"] == calls


def test_otherwise_the_handler_waits(on_signal: Callable[[Any], object]) -> None:
    """If the signal has interrupted other code, or nothing; and in a callback without a signal."""

    @closes
    def close() -> bool:
        return threading.current_thread() is threading.main_thread()

    results = [close()]
    on_signal(lambda _number, _frame: results.append(close()))
    interrupt()
    shown(None, lambda _value: str(results.append(close())))
    assert [True, True, True] == results


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pulsar.Timeout("no answer"), ["closing has failed: no answer"]),
        (pulsar.AlreadyClosed("it is"), []),
    ],
)
def test_a_failure_on_the_other_thread_is_logged(
    error: Exception, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No caller gets it; what is closed already is no failure."""

    @closes
    def close() -> None:
        raise error

    with exiting.ending():
        assert close() is None
    assert exiting._last is not None
    exiting._last.join(120)
    assert said == [each.getMessage() for each in caplog.records]
