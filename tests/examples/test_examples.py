"""Each example runs, ends by itself, and prints what it says it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pulsar_retry.testing.broker import RunningBroker
from support.logged import entries

EXAMPLES = Path(__file__).parents[2] / "examples"


#: How an entry of the log begins, and what an error has more.
FAILED = "a message failed and is "
#: The breaker of an example opens, and closes.
OPENED = (
    "the breaker of 'archive' has opened: since the last success, 10 different messages have "
    "failed, the last one with ConnectionError: the database is down. Until messages succeed, "
    "one message is tried at a time, and only those that have failed before use up attempts, but "
    "not their last one. If the messages are at fault, raise Reject, or list the error in the "
    "policy's dead_letter_on; breaker=None switches this off"
)
CLOSED = "the breaker of 'archive' has closed after … s: messages succeed again"
TRACEBACK = "\nTraceback (most recent call last):\n  …\n"


def run(name: str, broker: RunningBroker, log: Sequence[str] = (), topic: str = "orders") -> str:
    """Run an example to its end, see that it logs *log*, and return what it printed."""
    process = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        env={**os.environ, "PULSAR_SERVICE_URL": broker.service_url},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    logged = entries(process.stderr, EXAMPLES, "/home/you", topic)
    # Lines of the program are counted by whoever opens it.
    assert [re.sub(r"(\.py):\d+ in", r"\1 in", each) for each in logged] == sorted(log)
    return process.stdout


def of(subscription: str, attempt: int, topic: str = "orders") -> str:
    """Return what an entry of the log says of the message."""
    full = f"persistent://public/default/{topic}"
    return f"({full}, subscription {subscription!r}, attempt {attempt}): "


def test_drop_in(broker: RunningBroker) -> None:
    """Two orders are paid, one of them by a retry; one is dead at once, one after two retries."""
    output = run("drop_in.py", broker)
    assert sorted(output.splitlines()) == [
        "all 4 orders are settled",
        "attempt 1: dead at once: could not convert string to float: 'free'",
        "attempt 1: no answer for the chair",
        "attempt 1: no answer for the lamp",
        "attempt 1: paid 12.50",
        "attempt 2: no answer for the chair",
        "attempt 2: paid 99.00",
        "attempt 3: no answer for the chair",
    ]


def test_delay_levels(broker: RunningBroker) -> None:
    """Each retry carries the delay of its level, or the one that was asked for."""
    output = run("delay_levels.py", broker)
    lines = [
        re.fullmatch(r"(retry .*): ([0-9.]+) s, back after ([0-9.]+) s", line)
        for line in output.splitlines()
    ]
    assert [match and (match[1], float(match[2])) for match in lines] == [
        ("retry 1, delay=None, level=None", 0.3),
        ("retry 2, delay=None, level=None", 0.6),
        ("retry 3, delay=None, level=3", 1.0),
        ("retry 4, delay=0.5, level=None", 0.5),
        ("retry 5, delay=None, level=0", 0.0),
    ]


def test_tdmq_naming(broker: RunningBroker) -> None:
    """Four dialects are named; letters of TDMQ 2.7.2 are named by the subscription alone."""
    output = run("tdmq_naming.py", broker)
    for dialect in ("pulsar", "tdmq-2.9.2", "tdmq-2.7.2", "tdmq-2.6.1"):
        assert re.search(rf"^{dialect} +retry +persistent://", output, re.MULTILINE)
    letters = r"persistent://public/default/billing-[0-9a-f]{8}"
    assert re.search(rf"^retried through {letters}-RETRY, DELAY=1$", output, re.MULTILINE)
    assert re.search(
        rf"^dead in {letters}-DLQ, from .*/orders-[0-9a-f]{{8}}$", output, re.MULTILINE
    )


def test_keyed(broker: RunningBroker) -> None:
    """Each key is there on the first attempt, on the retry and on the dead letter."""
    output = run("keyed.py", broker)
    for key in ("alice", "bob", "carol"):
        for line in (
            f"deposit, key {key}, attempt 1",
            f"withdrawal, key {key}, attempt 1",
            f"withdrawal, key {key}, attempt 2",
            f"dead: withdrawal, key {key}, ordering key {key}-orders",
        ):
            assert output.count(line) == 1


def test_pull_worker(broker: RunningBroker) -> None:
    """Three orders are paid, one of them by a retry; the one that is no number is dead."""
    error = "ValueError: could not convert string to float: b'free'"
    place = "(/home/you/pull_worker.py in pay)"
    output = run(
        "pull_worker.py",
        broker,
        log=[
            f"{FAILED}retried in 0.2 s {of('billing', 1)}TimeoutError: no answer {place}",
            f"{FAILED}dead-lettered (not-retryable) {of('billing', 1)}{error} {place}{TRACEBACK}"
            + error,
        ],
    )
    assert sorted(output.splitlines()) == [
        "3 paid, 1 retried, 1 dead",
        "dead: chair, could not convert string to float: b'free'",
        "paid 12.50 for the tea, attempt 1",
        "paid 3.20 for the cup, attempt 1",
        "paid 99.00 for the lamp, attempt 2",
    ]


def test_async_consumer(broker: RunningBroker) -> None:
    """Every order is paid, half of them by a retry."""
    output = run("async_consumer.py", broker)
    assert output.splitlines() == [
        "100 of 100 orders are paid",
        "50 were retried, and no task waited for them",
    ]


def test_async_worker(broker: RunningBroker) -> None:
    """An outage costs some tries, and no message."""
    down = (
        f"{FAILED}retried in 5 s {of('archive', 1, 'readings')}"
        "ConnectionError: the database is down (/home/you/async_worker.py in store)"
    )
    output = run("async_worker.py", broker, log=[down, OPENED, CLOSED], topic="readings")
    assert output.splitlines() == [
        "200 stored, 0 dead",
        "more than one at a time: True, but no more than asked: True",
        "failed while the database was down: fewer than 200: True",
    ]


def test_ordered(broker: RunningBroker) -> None:
    """Each account's transactions are in order, and only the one that failed had to wait."""
    late = (
        f"{FAILED}retried in 3 s {of('ledger', 1, 'accounts')}"
        "TimeoutError: no answer for alice (/home/you/ordered.py in book)"
    )
    output = run("ordered.py", broker, log=[late], topic="accounts")
    assert output.splitlines() == [
        "alice: [0, 1, 2, 3]",
        "bob: [0, 1, 2, 3]",
        "carol: [0, 1, 2, 3]",
        "the last to be done: alice, who had to wait",
    ]


def test_push_receiver(broker: RunningBroker) -> None:
    """Two orders are sold, one of them on its second attempt; one is dead after three."""
    answer = "PushNacked: http://localhost: answered 503"
    output = run(
        "push_receiver.py",
        broker,
        log=[
            f"{FAILED}retried in 0.2 s {of('shop', 1)}{answer}",
            f"{FAILED}dead-lettered (retries-exhausted) {of('shop', 3)}{answer}",
        ],
    )
    assert sorted(output.splitlines()) == [
        "2 sold, 3 retried, 1 dead",
        "attempt 1: no chair in stock",
        "attempt 1: no lamp in stock",
        "attempt 1: sold the tea to alice, says push@example.com",
        "attempt 2: no chair in stock",
        "attempt 2: sold the lamp to alice, says push@example.com",
        "attempt 3: no chair in stock",
        "dead: chair, retries-exhausted",
    ]


def test_observed(broker: RunningBroker) -> None:
    """A retry and a dead letter: told by hooks, counted, and traced."""
    place, rejected = "(/home/you/observed.py in handle)", "Reject: invalid-price"
    output = run(
        "observed.py",
        broker,
        log=[
            f"{FAILED}retried in 0 s {of('billing', 1)}TimeoutError: no answer {place}",
            f"{FAILED}dead-lettered (invalid-price) {of('billing', 1)}{rejected} {place}",
        ],
    )
    lines = output.splitlines()
    # Threads print them, so two of them may be in one line.
    assert "retried after attempt 1: TimeoutError('no answer')" in output
    assert "dead at attempt 1: invalid-price" in output
    counted = dict(re.findall(r'deliveries_total\{outcome="(\w+)",\S* (\S+)', output))
    assert {"acknowledged": "2.0", "dead_lettered": "1.0", "retried": "1.0"} == counted
    spans = [line.split()[1] for line in lines if line.startswith("span ")]
    assert ["dead_letter", *["process"] * 4, "retry"] == sorted(spans)
    assert 1 == output.count(", linked to 1")
