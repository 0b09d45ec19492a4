"""The console's pages, without a network: letters come from a desk that makes them up."""

from __future__ import annotations

import re
from typing import Any

import pulsar
import pytest
from starlette.testclient import TestClient

from pulsar_retry.console.access import COOKIE, Access
from pulsar_retry.console.app import Console
from pulsar_retry.console.depth import Depths
from pulsar_retry.console.desk import Contents, LetterBrowser
from pulsar_retry.console.jobs import Jobs
from pulsar_retry.errors import AdminError, ConfigError, PulsarRetryError
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.replay import Cluster, Group

TOKEN = "correct horse battery"  # noqa: S105 - nobody has it
DLQ = "persistent://public/default/orders-billing-DLQ"
URL = "http://127.0.0.1:8070"
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b"

FACTS: dict[str, Any] = {
    **dict.fromkeys(("topic", "key", "reason", "error", "message", "traceback"), EVIL),
    **dict.fromkeys(("fingerprint", "stage", "origin_topic", "subscription"), EVIL),
    "message_id": "1:2:-1",
    "published": "2026-01-31T12:00:00+00:00",
    "event_time": None,
    "failed": None,
    "attempt": 3,
    "redrives": 0,
    "origin_message_id": EVIL,
    "properties": {EVIL: EVIL},
    "payload": EVIL,
}


class MadeUp(LetterBrowser):
    """Letters of an attacker."""

    facts = FACTS
    fault: Exception | None = None

    def topics(self, _namespace: str) -> list[LetterTopic]:
        return [
            LetterTopic(
                topic=f"persistent://public/default/{EVIL}-DLQ",
                kind="dead_letter",
                main_topic=None,
                subscription=EVIL,
                backlog=7,
                oldest_age_seconds=120.0,
                rate_in=0.0,
                rate_out=0.0,
                partitions=0,
                subscriptions=(),
                consumers=0,
            )
        ]

    def contents(self, topic: str, _where: Any) -> Contents:
        self.checked(topic)
        if self.fault is not None:
            raise self.fault
        group = Group(EVIL, EVIL, EVIL, EVIL, 2, ("1:2:-1",))
        return Contents((group,), [self.facts], 1, 1, has_more=True)

    def letter(self, topic: str, _message_id: str) -> dict[str, Any]:
        self.checked(topic)
        return self.facts


def console(access: Access) -> Console:
    """Return a console of letters that are made up."""
    cluster = Cluster("pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    desk = MadeUp(cluster, ["public/default"])
    return Console(desk, Jobs(cluster), Depths(desk.topics, desk.namespaces), access)


@pytest.fixture
def local() -> Console:
    """Return a console on loopback, without a token."""
    return console(Access("127.0.0.1"))


@pytest.fixture
def browser(local) -> TestClient:
    """Return what asks it."""
    return TestClient(local.app(), base_url=URL, follow_redirects=False)


@pytest.fixture
def locked() -> TestClient:
    """Return what asks a console that wants a token."""
    app = console(Access("10.0.0.1", token=TOKEN)).app()
    return TestClient(app, base_url="http://dlq.example", follow_redirects=False)


PAGES = ["/", f"/topic?name={DLQ}", f"/letter?name={DLQ}&id=1:2:-1", f"/redrive?name={DLQ}"]
HEADERS = ("content-security-policy", "x-content-type-options", "cache-control", "x-frame-options")


@pytest.mark.parametrize("page", PAGES)
def test_nothing_of_a_letter_is_markup(browser, page) -> None:
    """Names, reasons, properties and payloads come from anywhere."""
    answer = browser.get(page)
    assert 200 == answer.status_code
    for tag in ("<script", "<img src=x", "\u202e", "\x1b", "javascript:"):
        assert tag not in answer.text
    if "redrive" not in page:
        assert "&lt;script&gt;" in answer.text


@pytest.mark.parametrize("field", ["reason", "since", "key"])
def test_nothing_of_an_address_is_markup(browser, field) -> None:
    """It may come from a link in a mail."""
    for page in ("/topic", "/redrive", "/letter", "/job", "/"):
        answer = browser.get(page, params={"name": DLQ, field: EVIL, "id": EVIL, "as": EVIL})
        assert answer.status_code in {200, 400, 404}
        assert "<script" not in answer.text


@pytest.mark.parametrize("page", [*PAGES, "/nowhere", "/style.css", "/login"])
def test_every_answer_forbids_scripts_frames_and_caches(browser, page) -> None:
    """Also those that tell of faults."""
    answer = browser.get(page)
    assert set(HEADERS) <= set(answer.headers)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8070", "10.0.0.1", ""])
def test_other_names_are_not_served_on_loopback(browser, host) -> None:
    """A name that is made to lead here, DNS rebinding, reads nothing."""
    answer = browser.get("/", headers={"host": host})
    assert 421 == answer.status_code
    assert "orders" not in answer.text


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1:8070", "[::1]:8070", "LOCALHOST"])
def test_loopback_is_served(browser, host) -> None:
    """By each of its names."""
    assert 200 == browser.get("/", headers={"host": host}).status_code


ORDERS = ["/redrive/look", "/redrive/confirm", "/redrive/cancel", "/login", "/logout"]


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_has_to_come_from_our_own_page(browser, local, order) -> None:
    """By its origin and by what only our pages know."""
    token = local.access.form_token
    form = {"form_token": token, "name": DLQ}
    assert 403 == browser.post(order, data=form).status_code
    assert 403 == browser.post(order, data=form, headers={"origin": "http://evil"}).status_code
    cross = {"origin": URL, "sec-fetch-site": "cross-site"}
    assert 403 == browser.post(order, data=form, headers=cross).status_code
    ours = {"origin": URL}
    for wrong in ("", "x", token[:-1]):
        answer = browser.post(order, data={**form, "form_token": wrong}, headers=ours)
        assert 403 == answer.status_code
        assert "does not come from this console" in answer.text
    assert 405 == browser.get(order).status_code or order == "/login"
    assert [] == local.jobs.all()


def test_a_form_is_not_endless(browser) -> None:
    """It is refused when it is too long."""
    answer = browser.post("/redrive/look", content=b"x" * 100_000, headers={"origin": URL})
    assert 413 == answer.status_code


@pytest.mark.parametrize("page", [*PAGES, "/redrives", "/job?id=x", "/nowhere"])
def test_without_a_session_there_is_only_the_login(locked, page) -> None:
    """Not even whether a page exists."""
    answer = locked.get(page)
    assert (303, "/login") == (answer.status_code, answer.headers["location"])
    assert "orders" not in answer.text


def log_in(client: TestClient, token: str, **headers: str) -> Any:
    """Fill in the login."""
    found = re.search('name="form_token" value="([^"]+)"', client.get("/login").text)
    assert found
    return client.post(
        "/login",
        data={"form_token": found[1], "token": token},
        headers={"origin": "http://dlq.example"} | headers,
    )


def test_the_token_opens_a_session_that_no_script_reads(locked) -> None:
    """And no page elsewhere uses; the cookie is not the token."""
    answer = log_in(locked, TOKEN)
    assert (303, "/") == (answer.status_code, answer.headers["location"])
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.lower().split("; "))
    assert TOKEN not in cookie
    assert 200 == locked.get("/").status_code


def test_behind_tls_the_cookie_is_for_tls_alone(locked) -> None:
    """The browser says that it speaks TLS to the proxy."""
    answer = log_in(locked, TOKEN, origin="https://dlq.example")
    assert "secure" in answer.headers["set-cookie"].lower()


def test_another_token_opens_nothing(locked) -> None:
    """It says so."""
    answer = log_in(locked, TOKEN + "x")
    assert 403 == answer.status_code
    assert "set-cookie" not in answer.headers
    assert "The token is wrong" in answer.text
    assert 303 == locked.get("/").status_code


def test_tokens_cannot_be_guessed_one_after_the_other(locked) -> None:
    """After ten wrong ones, neither the page nor a program's header is looked at for a while."""
    wrong = {"authorization": "Bearer x"}
    assert [403] * 5 == [log_in(locked, TOKEN + "x").status_code for _ in range(5)]
    assert [303] * 5 == [locked.get("/", headers=wrong).status_code for _ in range(5)]
    for answer in (
        log_in(locked, TOKEN),
        locked.get("/", headers={"authorization": f"Bearer {TOKEN}"}),
        locked.post("/redrive/look", headers=wrong | {"origin": "http://dlq.example"}),
    ):
        assert 429 == answer.status_code
        assert 1 <= int(answer.headers["retry-after"]) <= 6
        assert "too many wrong tokens" in answer.text
        assert "set-cookie" not in answer.headers
    assert 200 == locked.get("/login").status_code


def test_who_has_logged_in_is_not_throttled(locked) -> None:
    """Whatever others behind the same proxy try."""
    log_in(locked, TOKEN)
    session = locked.cookies[COOKIE]
    for _ in range(20):
        locked.cookies.clear()
        locked.get("/", headers={"authorization": "Bearer x"})
    locked.cookies.set(COOKIE, session)
    assert 200 == locked.get("/").status_code


def test_after_the_logout_the_cookie_opens_nothing(locked) -> None:
    """Also where somebody has kept it."""
    log_in(locked, TOKEN)
    kept = locked.cookies[COOKIE]
    found = re.search('name="form_token" value="([^"]+)"', locked.get("/").text)
    assert found
    ours = {"origin": "http://dlq.example"}
    locked.post("/logout", data={"form_token": found[1]}, headers=ours)
    locked.cookies.set(COOKIE, kept)
    assert 303 == locked.get("/").status_code


def test_a_program_brings_the_token_itself(locked) -> None:
    """As a bearer token."""
    assert 200 == locked.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code
    assert 303 == locked.get("/", headers={"authorization": "Bearer x"}).status_code


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ConfigError("since: odd"), 400),
        (PulsarRetryError("there is no topic"), 404),
        (AdminError(None, "path", "nobody answers"), 502),
        (pulsar.ConnectError("nobody answers"), 502),
    ],
)
def test_faults_are_told(browser, local, fault, status) -> None:
    """On a page, with a status."""
    local.desk.fault = fault
    answer = browser.get("/topic", params={"name": DLQ})
    assert status == answer.status_code
    assert "That did not work" in answer.text


@pytest.mark.parametrize("name", ["persistent://secret/ns/t-DLQ", "", "a/b", "public/other/t-DLQ"])
def test_other_namespaces_are_not_read(browser, local, name) -> None:
    """Whatever the console itself may read."""
    ours = {"origin": URL}
    for page in ("/topic", "/letter", "/redrive"):
        assert 400 == browser.get(page, params={"name": name, "id": "1:2"}).status_code
    form = {"form_token": local.access.form_token, "name": name}
    assert 400 == browser.post("/redrive/look", data=form, headers=ours).status_code


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": "persistent://a/b/c"},
        {"limit": "x"},
        {"limit": "0"},
        {"rate": "x"},
        {"rate": "nan"},
        {"since": "yore"},
        {"name": "orders-billing-RETRY"},
    ],
    ids=str,
)
def test_bad_wishes_are_told(browser, local, wrong) -> None:
    """Before anything is opened."""
    form = {"form_token": local.access.form_token, "name": DLQ} | wrong
    answer = browser.post("/redrive/look", data=form, headers={"origin": URL})
    assert 400 == answer.status_code
    assert next(iter(wrong)).replace("name", "topic") in answer.text


def test_there_is_no_redrive_without_a_dry_run(browser, local) -> None:
    """A made-up plan is none."""
    form = {"form_token": local.access.form_token, "plan": "x", "name": DLQ}
    answer = browser.post("/redrive/confirm", data=form, headers={"origin": URL})
    assert 400 == answer.status_code
    assert "dry run" in answer.text
    assert [] == local.jobs.all()


@pytest.mark.parametrize(
    ("payload", "form", "text"),
    [
        ({"payload": '{"a":[1]}'}, "json", "  &#34;a&#34;: ["),
        ({"payload": '{"a":[1]}'}, "text", "{&#34;a&#34;:[1]}"),
        ({"payload": "ab"}, "hex", "00000000  61 62"),
        ({"payload_base64": "/wA="}, "", "00000000  ff 00"),
        ({}, "", "A null value"),
    ],
)
def test_a_payload_in_each_form(browser, local, payload, form, text) -> None:
    """As it was asked for, else as what it is."""
    local.desk.facts = {k: v for k, v in FACTS.items() if k != "payload"} | payload
    answer = browser.get("/letter", params={"name": DLQ, "id": "1:2", "as": form})
    assert text in answer.text
