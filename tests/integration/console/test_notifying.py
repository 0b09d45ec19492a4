"""A console that tells a webhook of real letters."""

from __future__ import annotations

import re

from pulsar_retry.push import HmacVerifier
from support.console import Served
from support.push.receiving import Receiver, answer
from support.reading import eventually

SECRET = "0123456789abcdef"  # noqa: S105 - nobody has it


def test_a_webhook_is_told_of_new_failures_and_of_their_growth(
    broker, dead, namespace, tmp_path
) -> None:
    """It refuses at first, the console is killed, and nothing is lost or told twice."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    dead.create("keep")
    with Receiver(lambda _: answer(503)) as receiver:
        options = (
            *("--notify", receiver.url, "--notify-secret-file", str(secret)),
            *("--notify-growth", "10", "--notify-pause", "200ms"),
            *("--store", str(tmp_path / "console.db"), "--url", "https://dlq.example.com"),
        )
        console = Served(broker, namespace, *options)
        dead.fill(4)
        receiver.wait_for(1, 120)
        console.shows(r"localhost:\d+ \(\w+\) is not told of failures: 503", "/")
        console.kill()
        receiver.act = lambda _: answer(200)
        refused = len(receiver.requests)

        console = Served(broker, namespace, *options)

        def told() -> list[tuple[str, str]]:
            """Return what was told of the groups of this topic since then."""
            return [
                (each["kind"], each["reason"])
                for request in receiver.requests[refused:]
                for each in request.json()["events"]
                if each["topic"] == dead.dlq and each["about"] == "group"
            ]

        eventually(lambda: {("new", "even"), ("new", "odd")} <= set(told()), 120)
        dead.fill(30)
        eventually(lambda: {("growing", "even"), ("growing", "odd")} <= set(told()), 120)
        metrics = console.get("/metrics")
        assert 0 == console.stop()

    assert 4 == len(told())
    assert re.search(r'notices_pending\{webhook="http://localhost:\d+ \(\w+\)"\} 0', metrics)
    accepted = receiver.requests[refused:]
    ids = [HmacVerifier(SECRET.encode()).verify(dict(e.headers), e.body)["id"] for e in accepted]
    assert len(ids) == len(set(ids))
    assert receiver.requests[0].headers["webhook-id"] == ids[0]  # the same message again
    event = accepted[0].json()["events"][0]
    assert event["url"].startswith("https://dlq.example.com/group?name=persistent")
