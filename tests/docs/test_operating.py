"""The alerts of docs/operating.md, on a real broker."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pulsar

import pulsar_retry as pr
from support.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def test_the_broker_has_the_metrics_that_alerts_ask_for(broker, client, topic):
    """Each by this name, for a retry topic."""
    rules = "".join(re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    asked = set(re.findall(r"\bpulsar_\w+", rules))
    assert len(asked) >= 5
    client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared, enable_retry=True)
    retry = pr.Naming.PULSAR.topics(topic, "billing").retry

    def found() -> set[str]:
        with urllib.request.urlopen(f"{broker.admin_url}/metrics/", timeout=60) as response:
            lines = [line for line in response.read().decode().splitlines() if f'"{retry}"' in line]
        return {line.partition("{")[0] for line in lines}

    eventually(lambda: asked <= found())
