"""Make the pictures of the console in docs/, with sample letters, in a headless Chromium.

It needs `pip install -e '.[console,testing]'`, Chromium, and a namespace `public/default` in which
no topic has the name of one of these. It finds a broker in the same way as the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulsar

import pulsar_retry as pr
from pulsar_retry.testing.broker import find_broker, running_broker

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import Browser, find_chromium  # noqa: E402 - tests are not installed

RUN = "import sys; from pulsar_retry.cli import main; sys.exit(main())"
SIZE = (1280, 800)
HOUR = 3600.0
DLQ = "persistent://public/default/orders-billing-DLQ"
#: The reason, the class of the error, its text, and how often it comes.
FAILURES = (
    ("invalid", ValueError, "negative amount: -3 in line 2", 9),
    ("timeout", TimeoutError, "the payment service does not answer", 6),
    ("unreachable", ConnectionError, "connection refused: ledger.internal:443", 4),
    ("invalid", KeyError, "currency", 3),
    ("invalid", UnicodeError, "Zoë Brontë: “1234-äb” is no postcode", 2),
)
#: A handler in a file of its own, as the tracebacks in the pictures show it.
HANDLER = """

def handle(order, kind, text):
    charge(order, kind, text)


def charge(order, kind, text):
    raise kind(text)


def failed(order, kind, text):
    try:
        handle(order, kind, text)
    except kind as error:
        return error
"""


def order(number: int) -> bytes:
    """Return an order."""
    lines = [{"sku": f"A-{number % 40}", "amount": -3 if number % 3 else 3}]
    customer = {"name": "Zoë Brontë", "city": "Košice"}
    return json.dumps({"order": 1000 + number, "customer": customer, "lines": lines}).encode()


def fill(client: pr.Client, count: int) -> None:
    """Publish dead letters of a day, and some retry letters."""
    consumer = client.subscribe(
        "orders",
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=pr.DeadLetterPolicy(3),
    )
    producer, chance = client.create_producer("orders"), random.Random(7)
    for number in range(count // 8):
        producer.send(order(number), partition_key=f"customer-{number % 41}")
        consumer.reconsume_later(consumer.receive(10_000), delay=HOUR + number)
    handler: dict[str, Any] = {}
    exec(compile(HANDLER, "/app/billing/handler.py", "exec"), handler)
    kept = client.subscribe(DLQ, "pulsar-retry", consumer_type=pulsar.ConsumerType.Shared)
    kept.close()
    dead = client.create_producer(DLQ)
    for number in range(count):
        reason, kind, text, _ = chance.choices(FAILURES, [each[3] for each in FAILURES])[0]
        error = handler["failed"](order(number), kind, text)
        outage = chance.random() < 0.4  # noqa: PLR2004 - a picture
        ago = HOUR * (2 + chance.random() if outage else chance.random() * 23)
        letter = {
            "REAL_TOPIC": "persistent://public/default/orders",
            "REAL_SUBSCRIPTION": "billing",
            "RECONSUMETIMES": "3",
            "FAILURE_REASON": reason,
            "FAILURE_ERROR": kind.__name__,
            "FAILURE_MESSAGE": text,
            "FAILURE_TRACEBACK": "".join(traceback.format_exception(error)),
            "FAILURE_FINGERPRINT": f"{zlib.crc32(f'{reason} {kind.__name__}'.encode()):016x}",
            "FAILURE_TIME": datetime.fromtimestamp(time.time() - ago, UTC).isoformat(),
            "shop": str(number % 7),
        }
        dead.send(order(number), properties=letter, partition_key=f"customer-{number % 41}")


@contextlib.contextmanager
def served(urls: dict[str, str]):  # noqa: ANN201 - an iterator of a URL
    """Yield the URL of a console."""
    options = ["--port", "0", "--every", "1", "--json"]
    console = subprocess.Popen(
        [sys.executable, "-c", RUN, "console", *options],
        stdout=subprocess.PIPE,
        env=os.environ | urls,
    )
    try:
        assert console.stdout is not None
        yield json.loads(console.stdout.readline())["url"]
    finally:
        console.terminate()
        console.wait()


def take(url: str, browser: Browser) -> None:
    """Take the pictures."""

    def taken(name: str) -> None:
        browser.picture(ROOT / "docs" / f"console{name}.png")

    topic = f"{url}topic?name=orders-billing-DLQ"
    browser.open(topic)
    browser.wait_for("document.querySelector('#indexing').innerText.trim() === ''")
    browser.open(url)
    taken("-overview")
    browser.open(topic)
    taken("")
    browser.click("#groups a")
    browser.click("#letters a[href*='letter?']")
    taken("-letter")
    browser.open(f"{url}act?name=orders-billing-DLQ&verb=redrive&reason=timeout&rate=5")
    browser.click("form.act button")
    browser.wait_for("document.querySelector('.confirm')")
    browser.click(".confirm button")
    browser.wait_for("/ left/.test(document.querySelector('.progress')?.innerText)")
    taken("-job")


def main() -> None:
    """Make the letters, and take the pictures."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("there is no Chromium here")
    with running_broker(find_broker()) as broker, Browser(chromium, *SIZE) as browser:
        urls = {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
        errors = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        with pr.Client(broker.service_url, logger=errors) as client:
            fill(client, 300)
        with served(urls) as url:
            take(url, browser)


if __name__ == "__main__":
    main()
