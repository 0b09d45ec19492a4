"""Make docs/console.png: a picture of the console with sample letters, in a headless Chromium.

It needs `pip install -e '.[console,testing]'`, Chromium, and a namespace `public/default` without
letters. It finds a broker in the same way as the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pulsar

import pulsar_retry as pr
from pulsar_retry.testing.broker import find_broker, running_broker

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import Browser, find_chromium  # noqa: E402 - tests are not installed

RUN = "import sys; from pulsar_retry.cli import main; sys.exit(main())"
#: How many letters come together; there is one second between two waves.
WAVES = (2, 0, 0, 5, 0, 3, 0, 0, 11, 0, 0, 0)
SIZE = (1280, 800)


def order(number: int) -> bytes:
    """Return an order; most orders have an invalid amount."""
    lines = [{"sku": "A-17", "amount": -3 if number % 3 else 3}]
    return json.dumps({"order": 1000 + number, "lines": lines}).encode()


def refuse(payload: bytes) -> None:
    """Raise an error, as a failing handler does."""
    if b"-3" in payload:
        raise ValueError("negative amount")
    raise TimeoutError("payment service does not answer")


def let_die(client: pr.Client) -> None:
    """Dead-letter orders as time goes by."""
    consumer = client.subscribe(
        "orders",
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=pr.DeadLetterPolicy(3, initial_subscription_name="keep"),
    )
    producer, number = client.create_producer("orders"), 0
    for wave in WAVES:
        for _ in range(wave):
            producer.send(order(number), partition_key=f"customer-{number % 4}")
            message, number = consumer.receive(10_000), number + 1
            try:
                refuse(message.data())
            except (ValueError, TimeoutError) as error:
                reason = "invalid" if isinstance(error, ValueError) else "timeout"
                consumer.dead_letter(message, reason=reason, error=error)
        time.sleep(1)


def main() -> None:
    """Take the picture."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("there is no Chromium here")
    with running_broker(find_broker()) as broker:
        urls = {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
        console = subprocess.Popen(
            [sys.executable, "-c", RUN, "console", "--port", "0", "--every", "1", "--json"],
            stdout=subprocess.PIPE,
            env=os.environ | urls,
        )
        try:
            assert console.stdout is not None  # noqa: S101 - it was asked for
            url = json.loads(console.stdout.readline())["url"]
            errors = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            with pr.Client(broker.service_url, logger=errors) as client:
                let_die(client)
            with Browser(chromium, *SIZE) as browser:
                browser.open(f"{url}topic?name=orders-billing-DLQ")
                browser.picture(ROOT / "docs" / "console.png", whole=False)
        finally:
            console.terminate()
            console.wait()


if __name__ == "__main__":
    main()
