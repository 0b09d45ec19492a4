"""Webhooks are told of failures: when, in which words, and only once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import prometheus_client
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pulsar_retry.admin.position import Position
from pulsar_retry.console.notify import notifier as notifying
from pulsar_retry.console.notify.notifier import Notifier, NotifyOptions
from pulsar_retry.console.notify.outbox import NoticeMessage, NoticeOutbox
from pulsar_retry.console.notify.rules import (
    AGAIN,
    WHOLE,
    Notice,
    Told,
    WaitingCount,
    judged,
    to_tell,
)
from pulsar_retry.console.notify.webhook import Webhook
from pulsar_retry.console.notify.wording import RUNBOOKS, Wording
from pulsar_retry.console.store.database import Database
from pulsar_retry.console.store.history import History
from pulsar_retry.console.store.letters import IndexedLetter, IndexProgress, LetterIndex
from pulsar_retry.console.views import link
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import Fixed
from pulsar_retry.push import Hmac, HmacVerifier, ServiceAccount, Verifier
from support.push.receiving import Receiver, answer
from support.reading import eventually

DLQ = "persistent://public/default/orders-billing-DLQ"
SECRET = b"0123456789abcdef"
NOW = 1_800_000_000.0
EVIL = "<!channel> *<https://evil.example|log in>* & `x` \u202e\x1b[31m"


def waiting(count: int, group: int = 1, **facts: Any) -> WaitingCount:
    """Return letters that wait."""
    return WaitingCount(topic=DLQ, group=group, count=count, **facts)


@pytest.mark.parametrize(
    ("told", "count", "later", "kind"),
    [
        (None, 1, 0, "new"),
        (Told(1, 1, NOW), 100, 0, None),  # not 100 more
        (Told(1, 1, NOW), 101, 0, "growing"),
        (Told(1000, 1000, NOW), 1999, 0, None),  # not twice as many
        (Told(1000, 1000, NOW), 2000, 0, "growing"),
        (Told(0, 5, NOW), 5, AGAIN - 1, None),  # they were told a moment ago
        (Told(0, 5, NOW), 5, AGAIN, "returned"),
        (Told(0, 5, NOW), 100, 0, "growing"),
        (Told(10, 1000, NOW), 1000, 0, None),  # it goes up and down
        (Told(10, 1000, NOW), 1000, AGAIN, "growing"),
    ],
)
def test_when_a_group_is_told(told, count, later, kind) -> None:
    """New, back, and at least twice as many; not again and again."""
    found, after = judged(waiting(count), told, NOW + later, 100)
    assert kind == found
    assert (count if kind else told.level) == after.level


def test_fewer_letters_are_not_told_but_remembered() -> None:
    """And what is gone from a topic that is read as a whole; not from one that is just read."""
    told = {(DLQ, 1): Told(500, 500, NOW), (DLQ, 2): Told(7, 7, NOW)}
    notices, changed = to_tell([waiting(20)], told, frozenset([DLQ]), NOW, 100)
    assert [] == notices
    assert {(DLQ, 1): 20, (DLQ, 2): 0} == {name: each.level for name, each in changed.items()}
    assert ([], {}) == to_tell([waiting(20)], told, frozenset(), NOW, 100)


def test_a_topic_is_told_if_its_groups_do_not_explain_its_growth() -> None:
    """Thousands of letters that all differ, for example, or more than the index keeps."""
    whole = frozenset([DLQ])
    notices, _ = to_tell([waiting(150, WHOLE), waiting(150)], {}, whole, NOW, 100)
    assert ["new"] == [each.kind for each in notices]
    # Groups are counted before the depth of the topic is known.
    notices, told = to_tell([waiting(150)], {}, whole, NOW, 100)
    assert ["new"] == [each.kind for each in notices]
    assert ([], {}) == to_tell([waiting(150, WHOLE), waiting(150)], told, whole, NOW, 100)
    small = [waiting(20, group) for group in range(1, 11)]
    told = {each.subject: Told(10, 10, NOW) for each in small}
    notices, _ = to_tell([waiting(200, WHOLE), *small], told, whole, NOW, 100)
    assert [("growing", False)] == [(each.kind, each.is_group) for each in notices]


@attrs.define
class Indexed:
    """What is in the index."""

    index: LetterIndex
    is_whole: bool = True

    def counts(self) -> dict[str, int]:
        """Return the topics that were read."""
        return self.index.counts()

    def progress(self, _topic: str) -> IndexProgress:
        """Return whether all of it was read."""
        return IndexProgress(0, 1.0, self.is_whole)


class Telling:
    """A console's store on a disk, and what tells a webhook of it."""

    def __init__(self, path: Path, *urls: str, pause: float = 0.1) -> None:
        self.database = Database(path)
        self.index, self.changes = LetterIndex(self.database), 0
        hooks = [Webhook.of(each, signers=[Hmac(SECRET)]) for each in urls]
        self.notifier = Notifier(
            NotifyOptions(hooks, pause=pause, console="https://dlq.example.com"),
            lambda console: Wording("broker:6650", console, link),
            outbox=NoticeOutbox(self.database),
            history=History(self.database),
            indexer=Indexed(self.index),
            changed=lambda: self.changes,
        )

    def dies(self, error: str, count: int = 1, topic: str = DLQ, message: str = "") -> None:
        """Add dead letters."""
        letters = [
            IndexedLetter(
                position=Position(hash(error) % 10**9, self.changes + each, -1),
                reason="invalid",
                error=error,
                fingerprint="f",
                message=message,
                at=NOW,
                published=NOW,
                attempt=1,
                redrives=0,
                key=None,
            )
            for each in range(count)
        ]
        self.index.add(topic, letters, letters)
        self.changes += count

    def sample(self, result: str) -> float:
        """Return a metric."""
        registry = prometheus_client.CollectorRegistry()
        registry.register(self.notifier)
        (hook,) = self.notifier._options.webhooks
        labels = {"webhook": str(hook), "result": result}
        return registry.get_sample_value("pulsar_retry_notifications_total", labels) or 0.0

    def close(self) -> None:
        """End as a console does."""
        self.notifier.stop()
        self.database.close()


@contextlib.contextmanager
def telling(path: Path, *urls: str, **options: Any) -> Iterator[Telling]:
    """Give a running one."""
    told = Telling(path, *urls, **options)
    with contextlib.closing(told):
        told.notifier.start("http://127.0.0.1:8070/")
        yield told


def events(receiver: Receiver) -> list[str]:
    """Return the errors that were told, by the requests that were accepted or not."""
    return [each["error"] for request in receiver.requests for each in request.json()["events"]]


def test_failures_are_retried_as_they_were_and_nothing_is_told_twice(
    tmp_path, monkeypatch, caplog
) -> None:
    """Signed as push requests are; the same message at each attempt; a restart repeats nothing."""
    monkeypatch.setattr(notifying, "_BACKOFF", Fixed(0.05))
    began = time.monotonic()
    path = tmp_path / "console.db"
    with Receiver(lambda _: answer(500, b"at /push: no")) as receiver:
        with telling(path, receiver.url) as told, caplog.at_level(logging.WARNING):
            told.dies("ValueError", 3, message="negative amount")
            receiver.wait_for(3)
            told.dies("KeyError")
            receiver.act = lambda _: answer(200)
            eventually(lambda: "KeyError" in events(receiver))
            eventually(lambda: told.sample("sent") == 2)
            assert told.sample("failed") >= 3
        verify = HmacVerifier(SECRET).verify
        ids = [verify(dict(each.headers), each.body)["id"] for each in receiver.requests]
        bodies = [each.body for each in receiver.requests]
        assert 2 == len(set(ids)) == len(set(bodies))
        first, last = receiver.requests[0].json(), receiver.requests[-1].json()
        assert (1, "pulsar-retry.failures", ids[0]) == (
            first["version"],
            first["type"],
            first["id"],
        )
        assert (
            "New failure in orders-billing-DLQ: ValueError · invalid, 3 letters wait"
            == (first["summary"])
        )
        assert {"new": 1} == last["counts"]
        (event,) = first["events"]
        assert event["url"].startswith("https://dlq.example.com/group?")
        assert RUNBOOKS["new"] == event["runbook"]
        before = len(receiver.requests)
        with telling(path, receiver.url) as told:
            told.changes = 1000
            told.dies("TypeError")
            receiver.wait_for(before + 1)
        assert ["TypeError"] == events(receiver)[before:]
    line, *later = [each for each in caplog.messages if "500" in each]
    assert len(later) <= (time.monotonic() - began) // 60  # one each minute
    assert "/push" not in line
    assert re.search(r"http://localhost:\d+ \(\w{6}\): 500 at …: no", line)


def test_many_at_once_are_one_message(tmp_path) -> None:
    """Thousands of groups, in several topics: the largest, and how many others there are."""
    with Receiver() as receiver:
        told = Telling(tmp_path / "console.db", receiver.url, pause=0.1)
        for number in range(3000):
            told.dies(f"Error{number}", 2 if number == 7 else 1, f"{DLQ}{number % 3}")
        with contextlib.closing(told):
            told.notifier.start("http://127.0.0.1:8070/")
            receiver.wait_for(1)
            eventually(lambda: told.sample("sent") == 1)
        (request,) = receiver.requests
    body = request.json()
    assert ({"new": 3000}, 10, 2990) == (body["counts"], len(body["events"]), body["more"])
    assert "Error7" == body["events"][0]["error"]
    assert "Failures in 3 topics: 3,000 new" == body["summary"]
    assert len(request.body) < 20_000


def test_a_slow_webhook_delays_no_other_one(tmp_path) -> None:
    """Nor the end of the console."""
    with Receiver(lambda _: answer(200, b"", then="hang")) as slow, Receiver() as quick:
        slow.act = lambda _: attrs.evolve(answer(200), data=b"HTTP/1.1 ", then="hang")
        with telling(tmp_path / "console.db", slow.url, quick.url) as told:
            told.dies("ValueError")
            slow.wait_for(1)
            quick.wait_for(1)
            told.dies("KeyError")
            quick.wait_for(2)
        assert 1 == len(slow.requests)


def test_what_is_refused_for_its_content_is_given_up(tmp_path, monkeypatch, caplog) -> None:
    """Else it would keep all others from being told."""
    monkeypatch.setattr(notifying, "_BACKOFF", Fixed(0.01))

    def act(request: Any) -> Any:
        return answer(400 if b"ValueError" in request.body else 204)

    with Receiver(act) as receiver, telling(tmp_path / "console.db", receiver.url) as told:
        told.dies("ValueError")
        receiver.wait_for(1)
        told.dies("KeyError")
        eventually(lambda: told.sample("sent") == 1)
        assert 1 == told.sample("dropped")
    assert any("given up after 5 attempts" in each for each in caplog.messages)


def test_a_service_account_signs_as_for_push() -> None:
    """And an answer that repeats the token does not bring it into the log."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    account = ServiceAccount("console@example.com", pem)

    def act(request: Any) -> Any:
        return answer(403, request.headers["Authorization"].encode())

    with Receiver(act) as receiver:
        hook = Webhook.of(receiver.url, signers=[account])
        outcome = asyncio.run(hook.post("msg_1", b"{}"))
    verifier = Verifier(account.jwks(), audience=receiver.url, email="console@example.com")
    assert verifier.verify(dict(receiver.requests[0].headers))
    assert "403 …" == outcome.why


def test_slack_sees_no_markup_of_a_letter() -> None:
    """Neither mentions nor links, in names and in texts; its limits are kept."""
    bad = WaitingCount(
        topic="persistent://public/default/a<b>|c-DLQ",
        group=1,
        count=2,
        error=EVIL * 50,
        reason=EVIL,
        message=EVIL * 500,
        first_seen=NOW,
    )
    notices = [Notice(kind="new", waiting=bad)] * 10
    message = NoticeMessage(
        id="m", at=NOW, notices=notices, counts={"new": 12, "growing": 1}, topics=1
    )
    body = Wording("broker", "https://dlq.example.com/", link).as_slack(message)
    single = Wording("broker", "https://dlq.example.com/", link).as_slack(
        attrs.evolve(message, notices=notices[:1], counts={"new": 1})
    )
    assert "&lt;!channel&gt;" in single["text"]
    for each in (body, single):
        assert "<" not in each["text"]
        assert len(each["blocks"]) <= 50
        for block in each["blocks"]:
            texts = block.get("elements") or [block["text"]]
            for text in texts:
                assert len(text["text"]) <= (150 if block["type"] == "header" else 3000)
                assert not set("\u202e\x1b") & set(text["text"])
                if text["type"] == "mrkdwn":
                    links = re.findall(r"<(https://[^<>|]+)\|[^<>|]+>", text["text"])
                    assert links
                    assert all(
                        re.match("https://(dlq.example.com|pulsar-retry.readthedocs.io)/", found)
                        for found in links
                    )
    json.dumps(body).encode()


def test_the_body_is_as_documented() -> None:
    """Every field of the documentation's example, and no other."""
    page = (Path(__file__).parents[3] / "docs" / "console.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    example = json.loads(block)
    event = example["events"][0]
    facts = {name: event[name] for name in ("reason", "error", "fingerprint", "message")}
    one = WaitingCount(topic=event["topic"], group=1, count=14, first_seen=NOW, **facts)
    message = NoticeMessage(
        id="m", at=NOW, notices=[Notice(kind="new", waiting=one)], counts={"new": 1}, topics=1
    )
    body = Wording(example["cluster"], example["console"], link).as_json(message)
    assert example.keys() == body.keys()
    assert event.keys() == body["events"][0].keys()
    same = ("version", "type", "cluster", "console", "summary", "counts", "more")
    assert {name: example[name] for name in same} == {name: body[name] for name in same}
    assert event["runbook"] == body["events"][0]["runbook"]


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/T0/secret",
        "https://user:secret@example.com/",
        "ftp://x/secret",
        "secret",
    ],
)
def test_the_url_of_a_webhook_is_checked_and_not_shown(url) -> None:
    """It is a secret."""
    with pytest.raises(ConfigError, match=r"^--notify") as caught:
        Webhook.of(url)
    assert "secret" not in str(caught.value) or url == "secret"


def test_the_form_is_that_of_the_host() -> None:
    """Slack's at Slack; nothing shows the path, in which the secret is."""
    hook = Webhook.of("https://hooks.slack.com/services/T0/B0/secretsecret")
    assert "slack" == hook.form
    assert "secret" not in f"{hook} {hook!r}"
    assert "json" == Webhook.of("https://example.com/hook").form
