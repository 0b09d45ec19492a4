"""`pulsar-retry metrics`, as Prometheus and an operator see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pulsar_retry as pr
from pulsar_retry import cli
from support.reading import SOON, SUBSCRIPTION
from support.waiting import eventually

RUN = (sys.executable, "-m", "pulsar_retry")


@pytest.fixture
def dead_letter(subscribe, publish) -> Callable[[], None]:
    """Return a function that makes one."""
    consumer = subscribe(
        dead_letter_policy=pr.DeadLetterPolicy(1, initial_subscription_name="keeper")
    )

    def dead_letter() -> None:
        publish()
        consumer.dead_letter(consumer.receive(SOON), reason="invalid")

    return dead_letter


def samples(text: str, topic: str) -> dict[str, float]:
    """Return the values of the test's subscription, or of its namespace."""
    return {
        sample.name.removeprefix("pulsar_retry_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("topic", topic) == topic
    }


@pytest.mark.usefixtures("environment")
def test_once(dead_letter, topic, namespace, capsys):
    """What waits, printed; as JSON it is what `dlq ls` says."""
    began = time.time()
    dead_letter()
    assert 0 == cli.main(["metrics", namespace, "--once"])
    found = samples(capsys.readouterr().out, topic)
    assert (1, 0, 1) == (found["dlq_backlog"], found["retry_backlog"], found["exporter_up"])
    assert 0 <= found["dlq_oldest_age_seconds"] <= time.time() - began
    assert 0 == cli.main(["metrics", namespace, "--once", "--json"])
    facts = {each["kind"]: each for each in json.loads(capsys.readouterr().out)}
    assert (1, SUBSCRIPTION) == (
        facts["dead_letter"]["backlog"],
        facts["dead_letter"]["subscription"],
    )


@pytest.mark.usefixtures("environment")
def test_it_serves_until_it_is_told_to_end(dead_letter, topic, namespace):
    """Prometheus sees dead letters arrive; SIGTERM is a clean end."""
    command = ["metrics", namespace, "--listen", "127.0.0.1:0", "--every", "1", "--json"]
    with subprocess.Popen(
        [*RUN, *command], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]

            def now() -> dict[str, Any]:
                with urllib.request.urlopen(url, timeout=60) as answer:
                    return samples(answer.read().decode(), topic)

            eventually(lambda: now().get("exporter_up") == 1)
            for count in (1, 2):
                dead_letter()
                eventually(lambda count=count: now().get("dlq_backlog") == count)
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(60)
        finally:
            process.kill()


@pytest.mark.parametrize("listen", ["9469", "host:", "host:port", "host:70000"])
def test_where_it_listens_is_checked(listen, capsys):
    """Before anything is asked."""
    assert 2 == cli.main(["metrics", "--listen", listen])
    assert f"listen={listen!r}" in capsys.readouterr().err


def test_a_broker_that_is_not_there(capsys):
    """With --once that is a failure; a server would go on and say so in `exporter_up`."""
    assert 1 == cli.main(["metrics", "--once", "--admin-url", "http://127.0.0.1:1"])
    assert "error:" in capsys.readouterr().err
