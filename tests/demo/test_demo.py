"""`pulsar-retry demo` against a broker: its numbers, its exit codes, its end by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from pulsar_retry import cli
from pulsar_retry.cli import demo
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.testing.broker import RunningBroker

COMMAND = [sys.executable, "-m", "pulsar_retry", "demo"]


@pytest.fixture
def arguments(broker: RunningBroker, namespace: str) -> Iterator[list[str]]:
    """Give what makes the demo use the broker and the namespace of the test."""
    handler = signal.getsignal(signal.SIGTERM)
    yield ["--service-url", broker.service_url, "--namespace", namespace]
    signal.signal(signal.SIGTERM, handler)  # the verb sets its own


def run(*arguments: str) -> str:
    """Run the demo to its good end and return what it printed."""
    process = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_story(arguments: list[str]) -> None:
    """Every step is told, the table sums up, and three dead letters show their properties."""
    output = run(*arguments, "--limit", "200")
    for step in ("data", "broker", "publish", "consume", "read back"):
        assert f"{step}  " in output
    assert "200 published: each accounted for by its key" in output
    assert "dead letter 3 of 3" in output
    for name in ("FAILURE_REASON", "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "RECONSUMETIMES"):
        assert f" {name} " in output
    assert "INFO" not in output  # the C++ client's log


def test_json_is_the_same_in_every_run(arguments: list[str]) -> None:
    """Standard output is one JSON object, and two runs agree on all but speed and names."""
    command = [*arguments, "--limit", "200", "--json"]
    first, second = json.loads(run(*command)), json.loads(run(*command))
    assert first["ok"] is True
    assert first["published"] == 200 == first["processed"] + first["dead_lettered"]
    assert first["retried"]["2"] >= first["retried"]["3"] >= first["retried"]["4"] > 0
    assert sum(first["reasons"].values()) == first["dead_lettered"]
    for name in ("processed", "dead_lettered", "retried", "reasons"):
        assert first[name] == second[name]


def test_lost_record_is_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that is acknowledged without having been processed is named, and the code is 1."""
    process = demo.process

    def lossy(message: pulsar.Message, results: Any) -> None:
        if message.partition_key() != "00M":
            process(message, results)

    monkeypatch.setattr(demo, "process", lossy)
    assert cli.main(["demo", *arguments, "--limit", "20", "--json"]) == 1
    output = capsys.readouterr()
    facts = json.loads(output.out)
    assert facts["ok"] is False
    assert facts["missing"] == ["00M"]
    assert "FAILED     1 missing: 00M" in output.err


def test_record_that_never_comes_ends_the_wait(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When nothing happens any more the demo gives up waiting, and the code is 1."""
    publish = demo.publish
    monkeypatch.setattr(demo, "publish", lambda *given: publish(*given) | {"never-published"})
    monkeypatch.setattr(demo, "PATIENCE", 12.0)
    assert cli.main(["demo", *arguments, "--limit", "20", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["missing"] == ["never-published"]


def test_interrupt_ends_it(arguments: list[str]) -> None:
    """Ctrl-C while it consumes: one line, exit code 1, no traceback."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("consume") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        watchdog = threading.Timer(120, process.kill)  # else a hang would be the test's, too
        watchdog.start()
        _, errors = process.communicate()
        watchdog.cancel()
    assert process.returncode == 1
    assert errors.strip() == "aborted"


def test_keep_leaves_the_dead_letters(arguments: list[str], broker: RunningBroker) -> None:
    """With `--keep` the dead letters can be read afterwards, from their subscription."""
    facts = json.loads(run(*arguments, "--limit", "100", "--json", "--keep"))
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(broker.service_url, logger=logger)
    topic, shared = facts["dead_letter_topic"], pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, KEEPING_SUBSCRIPTION, shared)
    keys = {consumer.receive(60_000).partition_key() for _ in range(facts["dead_lettered"])}
    assert len(keys) == facts["dead_lettered"] > 0
    client.close()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--limit", "0"], 2, "--limit"),
        (["--namespace", "a"], 2, "a/airports-"),
        (["--namespace", "a/b/c"], 2, "expected a topic"),
        (["--service-url", "pulsar:/nowhere"], 2, "service_url='pulsar:/nowhere'"),
        (["--service-url", "pulsar://127.0.0.1:1"], 1, "pulsar://127.0.0.1:1 was not reached"),
    ],
)
def test_bad_input(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is 2; a broker that does not answer is 1; both say what it was."""
    assert cli.main(["demo", "--limit", "1", *arguments]) == code
    assert message in capsys.readouterr().err


def test_without_the_data_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data set is an extra; that is told, not raised."""
    monkeypatch.setitem(sys.modules, "vega_datasets", None)
    assert cli.main(["demo"]) == 1
    assert 'pip install "pulsar-retry[demo]"' in capsys.readouterr().err
