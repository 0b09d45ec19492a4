"""Processes: workers that are some, and subscribers that are stopped or killed."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull import workers
from support.pull.handling import SOON
from support.pull.programs import Program
from support.reading import SUBSCRIPTION
from support.waiting import eventually

#: On a busy machine, a new worker can start too slowly for its lease, again and again.
MANY = pr.RetryPolicy(max_attempts=1000, backoff=pr.Immediate())


class TestWorkerProcesses:
    """`workers="processes"`."""

    def test_a_message_reads_as_here(self, start, publish, dead_letters, topic, caplog):
        """Its content, metadata and id; what the handler raises is judged and logged."""
        once = pr.RetryPolicy(max_attempts=1)
        start(workers.describe, workers="processes", concurrency=1, retry_policy=once)
        message_id = publish(b"order", properties={"a": "b"}, partition_key="k")
        (dead,) = dead_letters(1)
        failure = pr.DeadLetter.of(dead).failure
        told = (b"order", b"order", {"a": "b"}, "k", topic, str(message_id), 0)
        assert "RuntimeError" == failure.error
        assert (failure.message or "").endswith(repr(told)[1:])
        assert "is dead-lettered (retries-exhausted)" in caplog.text
        assert "RuntimeError: " in caplog.text

    def test_a_killer_is_dead_lettered_in_its_lane(self, start, publish, dead_letters):
        """After three workers, although it is retried without letters; its successors follow."""
        start(
            workers.die,
            workers="processes",
            concurrency=1,
            retry_policy=pr.RetryPolicy(max_attempts=10, backoff=pr.Fixed(0.1)),
            consumer_type=pulsar.ConsumerType.KeyShared,
        )
        publish(b"killer", partition_key="k")
        publish(b"0", partition_key="k")
        (dead,) = dead_letters(1)
        failure = pr.DeadLetter.of(dead).failure
        assert ("crash-loop", b"killer") == (failure.reason, dead.data())
        assert "3" == dead.properties()["FAILURE_CRASHES"]

    def test_a_killer_is_dead_lettered(self, start, publish, dead_letters, admin, topic):
        """After three workers, each of which is replaced; the others' work goes on."""
        policy = pr.RetryPolicy(backoff="immediate", retry_on=TimeoutError)
        subscriber = start(workers.die, workers="processes", concurrency=2, retry_policy=policy)
        publish(b"killer")
        for number in range(10):
            publish(b"%d" % number)
        (dead,) = dead_letters(1)
        failure = pr.DeadLetter.of(dead).failure
        assert ("crash-loop", b"killer") == (failure.reason, dead.data())
        assert 4 == failure.attempt
        eventually(lambda: not admin.backlog(topic, SUBSCRIPTION), 240)
        report = subscriber.stop()
        assert (10, 3, 1) == (report.acknowledged, report.retried, report.dead_lettered)

    def test_an_expired_lease_kills_the_worker(self, start, publish, admin, topic):
        """So a handler that hangs costs no worker for ever."""
        lease = pr.Lease(max_total=10)
        subscriber = start(
            workers.hang, workers="processes", concurrency=1, lease=lease, retry_policy=MANY
        )
        publish()
        eventually(lambda: not admin.backlog(topic, SUBSCRIPTION), 240)  # the letter is out
        retry = f"{topic}-{SUBSCRIPTION}-RETRY"
        eventually(lambda: not admin.backlog(retry, SUBSCRIPTION), 240)
        report = subscriber.stop()
        assert 1 == report.acknowledged
        assert report.expired >= 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_a_handler_starts_processes(self, start, publish, dead_letters):
        """It may, and SIGTERM ends them, although its worker process ignores SIGTERM."""
        once = pr.RetryPolicy(max_attempts=1)
        start(workers.start_others, workers="processes", concurrency=1, retry_policy=once)
        publish()
        (dead,) = dead_letters(1)
        assert "they ended with -15 and -15" == pr.DeadLetter.of(dead).failure.message

    def test_the_end_of_a_process_whose_handler_hangs(self, broker, publish, topic, tmp_path):
        """It was abandoned, and the interpreter does not wait for its worker process either."""
        publish()
        program = tmp_path / "main.py"
        program.write_text(
            "import sys, time\n"
            "import pulsar_retry as pr\n"
            "def hang(message):\n"
            "    time.sleep(600)\n"
            "if __name__ == '__main__':\n"
            "    client = pr.Client(sys.argv[1])\n"
            "    subscriber = client.subscriber(sys.argv[2], 's', hang, workers='processes')\n"
            "    subscriber.start()\n"
            "    while subscriber.in_hand[0] < 1:\n"
            "        time.sleep(0.1)\n"
            "    assert 1 == subscriber.stop(timeout=3).abandoned\n"
        )
        command = [sys.executable, str(program), broker.service_url, topic]
        subprocess.run(command, check=True, timeout=SOON)

    def test_no_worker_process_is_started_at_the_exit(self, broker, publish, topic, tmp_path):
        """Functions of `atexit` may take a while, and the worker threads still run."""
        publish(b"first")
        publish(b"second")
        program = tmp_path / "main.py"
        program.write_text(
            "import atexit, multiprocessing, sys, time\n"
            "import pulsar_retry as pr\n"
            "def hang(message):\n"
            "    time.sleep(600)\n"
            "def clean_up():\n"
            "    until = time.monotonic() + 3\n"
            "    while not (late := {*multiprocessing.active_children()} - first):\n"
            "        if time.monotonic() > until:\n"
            "            break\n"
            "        time.sleep(0.01)\n"
            "    print(len(late))\n"
            "if __name__ == '__main__':\n"
            "    client = pr.Client(sys.argv[1])\n"
            "    atexit.register(clean_up)\n"
            "    subscriber = client.subscriber(\n"
            "        sys.argv[2], 's', hang, workers='processes', concurrency=1\n"
            "    ).start()\n"
            "    while not (first := {*multiprocessing.active_children()}):\n"
            "        time.sleep(0.1)\n"
        )
        command = [sys.executable, str(program), broker.service_url, topic]
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=SOON)
        assert b"0\n" == ran.stdout

    def test_a_process_that_may_have_no_children(self, client, topic, publish, monkeypatch, admin):
        """The subscriber does not start, so it fails no messages."""
        publish()
        subscriber = client.subscriber(topic, SUBSCRIPTION, workers.judge, workers="processes")
        monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", value=True)
        with pytest.raises(pr.ConfigError, match=r"workers='processes': .* no child processes"):
            subscriber.start()
        assert SUBSCRIPTION not in admin.stats(topic)["subscriptions"]

    def test_a_main_module_that_starts_its_subscriber(self, tmp_path):
        """Each child imports it, so it would start others, which would fail the messages."""
        program = tmp_path / "main.py"
        program.write_text(
            "import multiprocessing\n"
            "from pulsar_retry.pull.workers.processes import check_may_start\n"
            "check_may_start()\n"
            "child = multiprocessing.get_context('spawn').Process(target=print)\n"
            "child.start()\n"
            "child.join()\n"
        )
        command = [sys.executable, str(program)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "below `if __name__ ==" in ran.stderr

    def test_what_cannot_travel(self, client, topic):
        """A lambda is refused before anything is opened."""
        with pytest.raises(
            pr.ConfigError, match=r"handler=.*: expected a value that another process"
        ):
            client.subscriber(topic, SUBSCRIPTION, lambda _: None, workers="processes")


#: How many are sent to processes of which one is killed.
MESSAGES = 2000


@pytest.fixture
def program(broker: Any, topic: str, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Return a function that starts such a program, with the seconds that its handler takes."""
    programs: list[Program] = []

    def program(pause: float, **options: str) -> Program:
        path = tmp_path / f"attempts-{len(programs)}"
        programs.append(Program(broker.service_url, topic, path, pause, **options))
        return programs[-1]

    yield program
    for each in programs:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_drain(program, publish, admin, topic, number):
    """What is in hand is handled, then the process ends with 0; the rest is there for others."""
    for each in range(40):
        publish(b"%d" % each)
    running = program(0.3)
    eventually(lambda: len(running.attempts()) >= 10)
    running.process.send_signal(number)
    assert 0 == running.process.wait(SOON)
    report = Path(f"{running.path}.report").read_text()
    handled = len(running.attempts())
    assert f"mode='drain', acknowledged={handled}," in report
    assert "abandoned=0" in report
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 40 - handled)


@pytest.fixture
def two_programs(client: pr.Client, program: Any, admin: Any, topic: str) -> Callable[..., Any]:
    """Return a function that starts two such programs, and waits until both have subscribed.

    What is published then is shared among them. If it were there before, the first one could handle
    all of it while the other one starts.
    """

    def two_programs(**options: str) -> tuple[Program, Program]:
        client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared).close()
        pair = program(0.002, **options), program(0.002, **options)
        eventually(lambda: len(admin.stats(topic)["subscriptions"][SUBSCRIPTION]["consumers"]) == 2)
        return pair

    return two_programs


def publish_all(client: pr.Client, topic: str, payloads: list[bytes], *, batching: bool) -> None:
    """Publish *payloads*."""
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        block_if_queue_full=True,
        batching_max_messages=50,
        send_timeout_millis=0,
    )
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_nothing_is_lost_when_a_process_is_killed(client, two_programs, admin, topic, batching):
    """5 % flaky, 1 % poison, two processes, one killed: each message is handled or dead in the end.

    Nor does any have more attempts than it may, and one for the kill: what had failed just before,
    so that its letter was out but not yet its acknowledgement, does not begin anew.
    """
    payloads = [workers.payload(number) for number in range(MESSAGES)]
    # longer than a tick: retries that come at once hide which letter was first
    pair = two_programs(backoff="fixed 3s")
    publish_all(client, topic, payloads, batching=batching)
    victim, survivor = both_at_work(pair, MESSAGES // 10)
    victim.process.kill()
    retry = f"{topic}-{SUBSCRIPTION}-RETRY"
    eventually(
        lambda: not admin.backlog(topic, SUBSCRIPTION) and not admin.backlog(retry, SUBSCRIPTION)
    )
    survivor.process.terminate()
    assert 0 == survivor.process.wait(SOON)
    attempts = Counter(victim.attempts() + survivor.attempts())
    dead = _read(client, f"{topic}-{SUBSCRIPTION}-DLQ")
    poison = {payload for payload in payloads if payload.startswith(b"poison")}
    assert set(payloads) == set(attempts)
    assert poison == set(dead)
    assert max(attempts.values()) <= 3 + 1 + _unsettled(survivor)  # and the kill
    assert min(attempts[payload] for payload in poison) >= 3
    assert min(attempts[payload] for payload in payloads if payload.startswith(b"flaky")) >= 2


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_a_kill_costs_an_attempt_at_most(client, two_programs, admin, topic, batching, redelivery):
    """Where everything fails again and again, and soon, so that most is under way at the kill.

    There are two cases in which each of the two processes may have all attempts of a message:

    - Batches are redelivered whole, also with messages that the killed process has dead-lettered,
      or that the other one has in hand.
    - Letters come within the tenth of a second for which pulsar-client keeps acknowledgements. Then
      those of the message and of its letters are all lost. For slower retries, see
      `test_nothing_is_lost_when_a_process_is_killed`.
    """
    payloads = [b"poison-%d" % number for number in range(600)]
    pair = two_programs(backoff="fixed 100ms", redelivery=redelivery)
    publish_all(client, topic, payloads, batching=batching)
    victim, survivor = both_at_work(pair, 300)
    victim.process.kill()
    dlq = f"{topic}-{SUBSCRIPTION}-DLQ"
    eventually(lambda: not admin.backlog(topic, SUBSCRIPTION))
    if redelivery == "letters":
        eventually(lambda: not admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION))
    survivor.process.terminate()
    assert 0 == survivor.process.wait(SOON)
    attempts = Counter(victim.attempts() + survivor.attempts())
    assert set(payloads) == set(attempts) == set(_read(client, dlq))
    assert 3 <= min(attempts.values())
    each_has_all = batching or redelivery == "letters"
    assert max(attempts.values()) <= (2 * 3 if each_has_all else 3 + 1) + _unsettled(survivor)


def both_at_work(pair: tuple[Program, Program], count: int) -> list[Program]:
    """Wait until both have begun, one of them more than *count* attempts; return that one first."""

    def attempts() -> list[int]:
        return sorted(len(each.attempts()) for each in pair)

    eventually(lambda: attempts()[0] > 0 and attempts()[1] > count)
    return sorted(pair, key=lambda each: len(each.attempts()), reverse=True)


def _unsettled(program: Program) -> int:
    """Return how many messages a program that has ended could not hand on: each comes once more.

    There are none but on a machine so busy that the broker takes no letter for half a minute.
    """
    report = Path(f"{program.path}.report").read_text(encoding="utf-8")
    [count] = re.findall(r"\bunsettled=(\d+)", report)
    return int(count)


def _read(client: pr.Client, topic: str) -> list[bytes]:
    """Return the payloads of all that is in *topic*."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    payloads = []
    while reader.has_message_available():
        payloads.append(reader.read_next(60_000).data())
    reader.close()
    return payloads
