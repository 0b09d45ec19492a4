"""The console's pages, without a network: letters come from a look-up that makes them up."""

from __future__ import annotations

import html
import re
import time
import urllib.parse
from typing import Any

import attrs
import pulsar
import pytest
from starlette.testclient import TestClient

from pulsar_retry.admin.position import Position
from pulsar_retry.console import pages
from pulsar_retry.console.app import Console
from pulsar_retry.console.forms import JobForm
from pulsar_retry.console.indexing import IndexProgress
from pulsar_retry.console.jobs import Job
from pulsar_retry.console.letters import IndexedLetter, LetterGroup, Summary
from pulsar_retry.console.login import COOKIE, Access
from pulsar_retry.console.lookup import Contents, LetterLookup
from pulsar_retry.errors import AdminError, ConfigError, PulsarRetryError
from pulsar_retry.ops.audit import AuditEntry
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.replay import Cluster, Redriven

TOKEN = "correct horse battery"
DLQ = "persistent://public/default/orders-billing-DLQ"
RETRY = "persistent://public/default/orders-billing-RETRY"
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


TOPIC = LetterTopic(
    topic=f"persistent://public/default/{EVIL}-DLQ",
    kind="dead_letter",
    main_topic=f"persistent://public/default/{EVIL}",
    subscription=EVIL,
    backlog=7,
    oldest_age_seconds=120.0,
    rate_in=0.0,
    rate_out=0.0,
    partitions=0,
    subscriptions=(),
    consumers=0,
)


class MadeUp(LetterLookup):
    """Letters of an attacker."""

    facts = FACTS
    fault: Exception | None = None

    def topics(self, _namespace: str) -> list[LetterTopic]:
        return [TOPIC]

    def contents(self, topic: str, _where: Any, _after: Any = None) -> Contents:
        self.checked(topic)
        if self.fault is not None:
            raise self.fault
        said = dict.fromkeys(("reason", "error", "fingerprint", "message"), EVIL)
        group = LetterGroup(topic=topic, **said, count=2, oldest=0, newest=1)
        letter = IndexedLetter(
            position=Position(1, 2), **said, at=0, attempt=3, redrives=1, key=EVIL, due=0
        )
        return Contents(
            groups=[group],
            letters=[letter],
            count=1,
            progress=IndexProgress(1, 0.5, is_whole=False),
            after="1:2",
        )

    def summary(self, topic: str) -> Summary:
        said = dict.fromkeys(("reason", "error", "fingerprint", "message"), EVIL)
        return Summary((LetterGroup(topic=topic, **said, count=2, oldest=0, newest=1),))

    def refresh(self, _topic: str) -> None:
        pass

    def letter(self, topic: str, _message_id: str) -> dict[str, Any]:
        self.checked(topic)
        return self.facts


def console(access: Access) -> Console:
    """Return a console of letters that are made up."""
    cluster = Cluster("pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    made = Console(cluster, access, ["public/default"])
    made.lookup.__class__ = MadeUp
    return made


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


PAGES = [
    "/",
    f"/topic?name={DLQ}",
    f"/topic?name={RETRY}&reason=x",
    f"/letter?name={DLQ}&id=1:2:-1",
    f"/act?name={DLQ}&verb=redrive",
]
OURS = '<script src="console.js" defer></script>'
HEADERS = ("content-security-policy", "x-content-type-options", "cache-control", "x-frame-options")


@pytest.mark.parametrize("page", PAGES)
def test_nothing_of_a_letter_is_markup(browser, page) -> None:
    """Names, reasons, properties and payloads come from anywhere."""
    answer = browser.get(page)
    assert 200 == answer.status_code
    text = answer.text.replace(OURS, "", 1)
    for tag in ("<script", "<img src=x", "\u202e", "\x1b", "javascript:"):
        assert tag not in text
    if "/act" not in page:
        assert "&lt;script&gt;" in answer.text


@pytest.mark.parametrize("field", ["reason", "since", "key"])
def test_nothing_of_an_address_is_markup(browser, field) -> None:
    """It may come from a link in a mail."""
    for page in ("/topic", "/act", "/letter", "/job", "/jobs", "/"):
        where = {"name": DLQ, field: EVIL, "id": EVIL, "as": EVIL, "after": EVIL}
        answer = browser.get(page, params=where)
        assert answer.status_code in {200, 303, 400, 404}
        assert "<script" not in answer.text.replace(OURS, "", 1)


@pytest.mark.parametrize("page", [*PAGES, "/nowhere", "/style.css", "/console.js", "/login"])
def test_every_answer_forbids_foreign_scripts_frames_and_caches(browser, page) -> None:
    """Also those that tell of faults."""
    answer = browser.get(page)
    assert set(HEADERS) <= set(answer.headers)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:8070", "localhost@evil:80", "10.0.0.1", "0.0.0.0", ""],
)
def test_other_names_are_not_served_on_loopback(browser, host) -> None:
    """A name that is made to lead here, DNS rebinding, reads nothing."""
    answer = browser.get("/", headers={"host": host})
    assert 421 == answer.status_code
    assert "orders" not in answer.text


@pytest.mark.parametrize("host", ["localhost.:9", "127.0.0.1:8070", "[::1]:8070", "LOCALHOST"])
def test_loopback_is_served(browser, host) -> None:
    """By each of its names."""
    assert 200 == browser.get("/", headers={"host": host}).status_code


FORMS = ["/look", "/confirm", "/cancel", "/login", "/logout"]


@pytest.mark.parametrize("action", FORMS)
def test_a_form_has_to_come_from_our_own_page(browser, local, action) -> None:
    """By its origin, which every browser sends."""
    form = {"name": DLQ}
    assert 403 == browser.post(action, data=form).status_code
    assert 403 == browser.post(action, data=form, headers={"origin": "http://evil"}).status_code
    cross = {"origin": URL, "sec-fetch-site": "cross-site"}
    assert 403 == browser.post(action, data=form, headers=cross).status_code
    assert (200 if action == "/login" else 405) == browser.get(action).status_code
    assert [] == local.jobs.all()


def test_a_form_is_not_endless(browser) -> None:
    """It is refused when it is too long."""
    answer = browser.post("/look", content=b"x" * 200_000, headers={"origin": URL})
    assert 413 == answer.status_code


@pytest.mark.parametrize("page", [*PAGES, "/jobs", "/job?id=x", "/metrics", "/nowhere"])
def test_without_a_session_there_is_only_the_login(locked, page) -> None:
    """Not even whether a page exists."""
    answer = locked.get(page)
    assert (303, "login") == (answer.status_code, answer.headers["location"])
    assert "orders" not in answer.text


def log_in(client: TestClient, token: str, **headers: str) -> Any:
    """Fill in the login."""
    ours = {"origin": "http://dlq.example"} | headers
    return client.post("/login", data={"token": token}, headers=ours)


def test_the_token_opens_a_session_that_no_script_reads(locked) -> None:
    """And no page elsewhere uses; the cookie is not the token."""
    answer = log_in(locked, TOKEN)
    assert (303, "./") == (answer.status_code, answer.headers["location"])
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.lower().split("; "))
    assert TOKEN not in cookie
    assert 200 == locked.get("/").status_code


def test_behind_tls_the_cookie_is_for_tls_alone(locked) -> None:
    """The browser says that it speaks TLS to the proxy."""
    answer = log_in(locked, TOKEN, origin="https://dlq.example")
    assert "secure" in answer.headers["set-cookie"].lower()


def test_after_the_logout_the_cookie_opens_nothing(locked) -> None:
    """Also where somebody has kept it."""
    log_in(locked, TOKEN)
    kept = locked.cookies[COOKIE]
    ours = {"origin": "http://dlq.example"}
    locked.post("/logout", headers=ours)
    locked.cookies.set(COOKIE, kept)
    assert 303 == locked.get("/").status_code


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
    local.lookup.fault = fault
    answer = browser.get("/topic", params={"name": DLQ})
    assert status == answer.status_code
    assert "That did not work" in answer.text


@pytest.mark.parametrize("name", ["persistent://secret/ns/t-DLQ", "", "a/b", "public/other/t-DLQ"])
def test_other_namespaces_are_not_read(browser, local, name) -> None:
    """Whatever the console itself may read."""
    ours = {"origin": URL}
    for page in ("/topic", "/letter", "/act", "/export", "/payload"):
        assert 400 == browser.get(page, params={"name": name, "id": "1:2"}).status_code
    form = {"name": name}
    assert 400 == browser.post("/look", data=form, headers=ours).status_code


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": "persistent://a/b/c"},
        {"to": "topic"},
        {"limit": "x"},
        {"limit": "0"},
        {"rate": "x"},
        {"rate": "nan"},
        {"since": "yore"},
        {"since": "1h", "until": "2h"},
        {"attempt": "x"},
        {"verb": "x"},
        {"verb": "discard", "filter": ""},
        {"filter": "'"},
    ],
    ids=str,
)
def test_bad_wishes_are_told(browser, local, wrong) -> None:
    """Before anything is opened."""
    form = {"name": DLQ} | wrong
    answer = browser.post("/look", data=form, headers={"origin": URL})
    assert 400 == answer.status_code
    assert list(wrong)[-1] in answer.text


def test_there_is_no_redrive_without_a_dry_run(browser, local) -> None:
    """A made-up plan is none."""
    form = {"plan": "x", "name": DLQ}
    answer = browser.post("/confirm", data=form, headers={"origin": URL})
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
    local.lookup.facts = {k: v for k, v in FACTS.items() if k != "payload"} | payload
    answer = browser.get("/letter", params={"name": DLQ, "id": "1:2", "as": form})
    assert text in answer.text


def test_a_proxy_says_who_the_user_is() -> None:
    """Its header is the user; without it nobody is served."""
    access = Access("127.0.0.1", user_header="X-Forwarded-User", allow_hosts=["dlq.example"])
    made = console(access)
    browser = TestClient(made.app(), base_url="https://dlq.example", follow_redirects=False)
    for page in ("/", "/jobs", f"/letter?name={DLQ}&id=1:2", "/nowhere"):
        answer = browser.get(page)
        assert 401 == answer.status_code
        assert "orders" not in answer.text
    ada = {"x-forwarded-user": "ada"}
    assert '<span class="who">ada</span>' in browser.get("/", headers=ada).text
    form = {"plan": "x"}
    ours = {"origin": "https://dlq.example"}
    assert 401 == browser.post("/confirm", data=form, headers=ours).status_code
    assert 403 == browser.post("/confirm", data=form, headers=ada).status_code
    assert 400 == browser.post("/confirm", data=form, headers=ada | ours).status_code


def test_a_form_needs_a_session(locked) -> None:
    """One of our pages that was open when the session ended."""
    for action in set(FORMS) - {"/login"}:
        answer = locked.post(action, headers={"origin": "http://dlq.example"})
        assert 401 == answer.status_code, action
    program = {"authorization": f"Bearer {TOKEN}", "origin": "http://dlq.example"}
    assert 401 == locked.post("/look", data={"name": DLQ}, headers=program).status_code


def test_a_chart_shows_even_one_letter_beside_thousands(browser, local, monkeypatch) -> None:
    """And no bar where nothing has died."""
    now = int(time.time())
    contents = attrs.evolve(
        MadeUp.contents(local.lookup, DLQ, None), deaths={now: 5000, now - 7200: 1}
    )
    monkeypatch.setattr(MadeUp, "contents", lambda *_: contents)
    page = browser.get(PAGES[1]).text
    assert ["2.0", "100.0"] == re.findall(r'<rect [^>]* height="([^"]+)"', page)
    assert "5,001 of the letters died in the last 24h, 5,000 at most in one bar" in page


def test_a_page_that_follows_reads_no_letter(browser, monkeypatch) -> None:
    """The traceback of a group does not change; reading it would take a new client each time."""
    read: list[str] = []
    monkeypatch.setattr(MadeUp, "letter", lambda _, _topic, each: read.append(each) or FACTS)
    page = f"{PAGES[1]}&reason=x"
    assert "Traceback of the oldest" in browser.get(page).text
    assert ["1:2:-1"] == read
    assert 200 == browser.get(page, headers={"x-live": "1"}).status_code
    assert ["1:2:-1"] == read
    assert '"x-live"' in browser.get("/console.js").text


@pytest.mark.parametrize(("count", "follows"), [(1, True), (None, False)])
def test_a_search_is_not_repeated(browser, monkeypatch, count, follows) -> None:
    """It reads the topic; other pages have parts that follow it."""
    contents = MadeUp.contents

    def some(self: MadeUp, topic: str, *given: Any) -> Contents:
        return attrs.evolve(contents(self, topic, *given), count=count, searched=9)

    monkeypatch.setattr(MadeUp, "contents", some)
    live = re.findall(r'id="(\w+)" (?:role="status" )?data-live', browser.get(PAGES[1]).text)
    assert "problem" in live
    assert follows == (len(live) > 1)


def test_what_is_typed_becomes_a_url(browser) -> None:
    """It can be shared, and has the names of the command line."""
    typed = "reason=invalid since=2h 'lost card' property=tenant=7"
    answer = browser.get("/topic", params={"name": DLQ, "filter": typed})
    assert 303 == answer.status_code
    page = browser.get(answer.headers["location"]).text
    assert "--reason invalid --since 2h --search &#39;lost card&#39; --property tenant=7" in page
    assert "reason=invalid since=2h &#39;lost card&#39; property=tenant=7" in page


def test_the_console_can_be_below_a_prefix(browser, locked) -> None:
    """A proxy removes the prefix, so no address begins with a slash, nor that of an answer."""
    for page in (*PAGES, "/jobs", "/login", "/nowhere"):
        addresses = re.findall('(?:href|src|action)="([^"]*)"', browser.get(page).text)
        assert addresses
        assert [] == [each for each in addresses if each.startswith("/") or "://" in each[:9]]
    for page in ("/", "/jobs"):
        assert not locked.get(page).headers["location"].startswith(("/", "http"))
    assert not log_in(locked, TOKEN).headers["location"].startswith(("/", "http"))
    assert not browser.get(f"/topic?name={DLQ}&filter=x").headers["location"].startswith("/")


def test_a_dry_run_that_awaits_its_answer_is_in_the_lists(browser, local) -> None:
    """Until it is confirmed; one that found nothing is in none."""
    form = JobForm.of([("reason", "odd")], DLQ)
    done = Redriven(source=DLQ, job="", dry_run=True, redriven=3)
    job = Job(
        id="j1", form=form, dry_run=True, by="ada", began=time.time(), state="done", done=done
    )
    local.jobs._jobs["j1"] = job
    for page in ("/", "/jobs"):
        text = browser.get(page).text
        assert '<a href="job?id=j1">A dry run awaits your answer</a>: redrive 3 letters' in text
    for other in (
        attrs.evolve(job, followed_by="j2"),
        attrs.evolve(job, done=attrs.evolve(done, redriven=0)),
        attrs.evolve(job, began=time.time() - 90_000),
    ):
        local.jobs._jobs["j1"] = other
        assert "awaits your answer" not in browser.get("/jobs").text


def test_every_page_says_that_the_broker_does_not_answer(browser, local) -> None:
    """What is shown may be old then."""
    local.watcher.problem = f"nobody answers {EVIL}"
    for page in (*PAGES, "/jobs"):
        text = browser.get(page).text
        assert "This page is not up to date: nobody answers" in text
        assert "<script" not in text.replace(OURS, "", 1)


def test_what_was_not_ended_can_be_asked_for_again(browser, monkeypatch) -> None:
    """As the audit log has it: with the same options, it continues where it ended."""
    given = {"reason": ["odd", "a b"], "limit": "7", "to": "topic", "target": "bench"}
    entries = [
        AuditEntry(at="2026-01-31T12:00:00.000+00:00", by="a", target=DLQ, job="1", **facts)
        for facts in (
            {"verb": "redrive", "given": given},
            {"verb": "redrive", "given": {"patch": "{}"}},
            {"verb": "seek", "given": {}},
            {"verb": "redrive", "given": given, "ended": "x", "result": {"redriven": 3}},
        )
    ]
    monkeypatch.setattr(pages, "read_audit", lambda *_: entries)
    text = browser.get("/audit").text
    (again,) = re.findall('<a href="([^"]+)">Again', text)
    form = JobForm.of(urllib.parse.parse_qsl(html.unescape(again).partition("?")[2]), DLQ)
    assert (
        JobForm.of([("filter", "reason=odd reason='a b'"), *list(given.items())[1:]], DLQ) == form
    )
    assert "redriven 3" in text
