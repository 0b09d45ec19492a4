"""What is logged of messages that fail: seen by everybody, and bounded."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.observe.failures import EVERY, LogLimiter
from pulsar_retry.testing import MemoryBroker
from support.waiting import eventually

POLICY = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(1))


def fail(_message: Any) -> None:
    """Handle a message in vain."""
    raise TimeoutError("no\nanswer")


async def fail_on_a_loop(message: Any) -> None:
    """Handle a message in vain."""
    fail(message)


def fail_otherwise(_message: Any) -> None:
    """Handle a message in vain, for another reason."""
    raise TimeoutError("no answer either")


def records_of(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture, handler: Any, count: int, **options: Any
) -> list[logging.LogRecord]:
    """Return the records of WARNING and above after *count* messages were settled."""
    options = {"retry_policy": POLICY, "breaker": None, **options}
    with memory.client().subscriber("orders", "billing", handler, **options):
        for number in range(count):
            memory.send("orders", b"%d" % number)
        memory.join("orders", "billing")
    return [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_many_messages_that_are_not_settled_are_one_line(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Their letters were not published before the subscriber was stopped."""
    count, handled = 50, threading.Semaphore(0)
    memory.faults.fail_send("orders-billing-DLQ", times=10_000)

    def reject(_message: Any) -> None:
        handled.release()
        raise pr.Reject("invalid")

    subscriber = memory.client().subscriber("orders", "billing", reject).start()
    for number in range(count):
        memory.send("orders", b"%d" % number)
    assert all(handled.acquire(timeout=120) for _ in range(count))
    waiting = subscriber._consumer._outbox.hand_off.waiting
    eventually(lambda: len(waiting) == count)
    subscriber.stop("abandon")
    lines = [each for each in caplog.messages if "was not settled" in each]
    closed = "redelivered: the consumer was closed before the letter could be published"
    assert 1 == sum(closed in each for each in lines)
    # A letter that was being tried in that moment has an error, and so a line, of its own.
    assert len(lines) <= 2


@pytest.mark.parametrize("handler", [fail, fail_on_a_loop])
def test_many_failures_of_a_kind_are_two_lines(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture, handler: Any
) -> None:
    """A WARNING for the retries, and an ERROR with the traceback for the dead letters."""
    warning, error = records_of(memory, caplog, handler, 50)
    assert (logging.WARNING, None) == (warning.levelno, warning.exc_info)
    text = warning.getMessage()
    assert "a message failed and is retried in 1 s (persistent://public/default/orders" in text
    assert "subscription 'billing', attempt 1): TimeoutError: no answer (" in text
    assert "test_failures.py:" in text
    assert text.endswith(" in fail)")
    assert (logging.ERROR, TimeoutError) == (error.levelno, error.exc_info[0])
    assert "is dead-lettered (retries-exhausted)" in error.getMessage()
    assert ("retries-exhausted", 3) == (error.reason, error.attempt)


def test_what_was_held_back_is_counted(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The next line of the kind says how many there were; no second traceback."""
    policy = pr.RetryPolicy(max_attempts=2, backoff=pr.Fixed(1))
    options = {"retry_policy": policy, "breaker": None}
    with memory.client().subscriber("orders", "billing", fail, **options):
        for number in range(30):
            memory.send("orders", b"%d" % number)
        memory.join("orders", "billing")
        caplog.clear()
        memory.clock.advance(EVERY)
        memory.send("orders", b"one more")
        memory.join("orders", "billing")
    warning, error = (each for each in caplog.records if each.levelno >= logging.WARNING)
    held_back = "29 more like it since the last such line"
    assert (held_back, held_back, None) == (
        warning.getMessage().rpartition("; ")[2],
        error.getMessage().rpartition("; ")[2],
        error.exc_info,
    )


def test_another_kind_has_a_line_of_its_own(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Another place or another class is another kind."""
    handlers = {b"0": fail, b"1": fail_otherwise}
    records = records_of(memory, caplog, lambda m: handlers[m.data()](m), 2)
    assert 4 == len(records)


@pytest.mark.parametrize(
    ("outcome", "levels"),
    [
        (pr.Retry(1), [logging.ERROR]),
        (pr.Reject("invalid"), [logging.ERROR]),
        (pr.Drop("stale"), []),
    ],
)
def test_what_a_handler_has_chosen(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture, outcome: Any, levels: list[int]
) -> None:
    """It is no error, unless the message becomes a dead letter."""
    assert levels == [each.levelno for each in records_of(memory, caplog, lambda _: outcome, 1)]


def test_a_failed_message_shows_without_any_configuration() -> None:
    """Python's handler of last resort prints warnings and errors to stderr."""
    program = """
import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

def handle(message):
    undefined_name

memory = MemoryBroker()
with memory.client().subscriber(
    "orders", "billing", handle, retry_policy=pr.RetryPolicy(max_attempts=2, backoff=pr.Fixed(1))
):
    memory.send("orders", b"x")
    memory.join("orders", "billing")
memory.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    lines = done.stderr.splitlines()
    assert "NameError: name 'undefined_name' is not defined" in lines[0]
    assert "is retried in 1 s" in lines[0]
    assert "is dead-lettered (retries-exhausted)" in lines[1]
    assert "Traceback" in lines[2]


def test_kinds_are_bounded() -> None:
    """The oldest is forgotten, and so may be logged again."""
    now = 0.0
    limiter = LogLimiter(now=lambda: now)
    assert (True, 0) == limiter.turn("first")
    assert limiter.turn("first") is None
    for number in range(200):
        limiter.turn(number)
    assert (True, 0) == limiter.turn("first")
