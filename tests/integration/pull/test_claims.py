"""Claims in a topic: messages that kill processes which keep nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull import crashing
from support.reading import SUBSCRIPTION, eventually

pytestmark = pytest.mark.timeout(180)

PROCESSES = 4
CRASHES = 3
MESSAGES = 200


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_poison_dies_after_three_crashes(broker, client, admin, topic, tmp_path: Path, kind):
    """Four processes without a disk, and each that dies is replaced: all others are handled."""
    client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic, batching_enabled=True)
    innocents = [b"%d" % number for number in range(MESSAGES)]
    for place, payload in enumerate(innocents):
        producer.send_async(payload, lambda *_: None)
        if place == MESSAGES // 4:
            producer.send_async(b"poison", lambda *_: None)
    producer.flush()
    log = tmp_path / "attempts"
    command = [sys.executable, crashing.__file__, broker.service_url, topic, kind, str(log)]
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    deaths = 0

    def has_ended() -> bool:
        nonlocal deaths
        for place, process in enumerate(running):
            if process.poll() is not None:
                assert process.returncode == 9
                deaths += 1
                running[place] = subprocess.Popen(command)
        return not admin.backlog(topic, SUBSCRIPTION)

    try:
        eventually(has_ended, 90)
        for process in running:
            process.terminate()
        assert [0] * PROCESSES == [process.wait(60) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    dead = client.subscribe(
        f"{topic}-{SUBSCRIPTION}-DLQ",
        "all",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    letter = dead.receive(10_000)
    with pytest.raises(pulsar.Timeout):
        dead.receive(500)
    attempts = Counter(log.read_bytes().splitlines())
    assert (b"poison", CRASHES, CRASHES) == (letter.data(), deaths, attempts.pop(b"poison"))
    assert attempts.keys() == set(innocents)
    assert "crash-loop" == pr.DeadLetter.of(letter).failure.reason
    claims = json.loads(letter.properties()["FAILURE_CLAIMS"])
    assert "3" == letter.properties()["FAILURE_CRASHES"]
    assert CRASHES == len({claim["process"] for claim in claims})
    assert [True] == [claim["alone"] for claim in claims if claim["alone"]]
