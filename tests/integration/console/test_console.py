"""The console on a real broker, by HTTP and in a real browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from support.browser import Browser, find_chromium
from support.reading import eventually
from support.replay.redriving import Dead, received

RUN = "import sys; from pulsar_retry.cli import main; sys.exit(main())"
TOKEN = "correct horse battery"  # noqa: S105 - nobody has it
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def dead(broker, admin, client, topic) -> Dead:
    """Give the topics of the test's subscription."""
    return Dead(broker, admin, client, topic)


class Served:
    """The command, in a process of its own."""

    def __init__(self, broker: Any, namespace: str, *options: str) -> None:
        command = [sys.executable, "-c", RUN, "console", "--port", "0", "--every", "1", "--json"]
        self.process = subprocess.Popen(
            [*command, "--namespace", namespace, *options],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ
            | {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url},
        )
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["url"]
        self.client = httpx2.Client(base_url=self.url, timeout=60, trust_env=False)

    def stop(self) -> int:
        """End it, and return its exit code."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        with self.process:
            return self.process.wait(60)

    def get(self, path: str, **parameters: str) -> str:
        """Return a page."""
        answer = self.client.get(path, params=parameters or None)
        assert 200 == answer.status_code, answer.text
        return answer.text

    def post(self, path: str, page: str, **form: str) -> httpx2.Response:
        """Send a form that *page* has."""
        found = re.search('name="form_token" value="([^"]+)"', page)
        assert found
        origin = {"origin": self.url.rstrip("/")}
        return self.client.post(path, data={"form_token": found[1], **form}, headers=origin)

    def job(self, answer: httpx2.Response) -> str:
        """Return the page of the job that a form has begun, when it is done."""
        assert 303 == answer.status_code, answer.text
        path = answer.headers["location"]
        eventually(lambda: ">running<" not in self.get(path))
        return self.get(path)


@pytest.fixture
def console(broker, namespace) -> Iterator[Served]:
    """Give a console of the test's namespace; it ends well when it is told to."""
    served = Served(broker, namespace)
    yield served
    assert 0 == served.stop()


@pytest.fixture(scope="module")
def chromium() -> str:
    """Return where Chromium is."""
    found = find_chromium()
    if found is None:
        pytest.skip("skipped, because there is no Chromium here (Debian's package: chromium)")
    return found


@pytest.fixture
def browser(chromium) -> Iterator[Browser]:
    """Give a browser, which has nothing to complain of."""
    with Browser(chromium) as browser:
        yield browser
        assert [] == browser.problems


def test_looking_consumes_nothing(console, dead, namespace) -> None:
    """Not even a subscription is left; every page tells of the letters."""
    dead.create("keep", "other")
    dead.fill(5)
    dead.send(b"\x00\xff", dead.properties(7, FAILURE_MESSAGE=EVIL), partition_key="k")
    before = dead.cluster.admin().topics.stats(dead.dlq)["subscriptions"].keys()

    page = console.get("/", namespace=namespace)
    assert f">{dead.dlq.rpartition('/')[2]}</a>" in page
    page = console.get("/topic", name=dead.dlq)
    assert re.search(r'<td class="number">3\s*<td>.*even', page)
    assert re.search(r'<td class="number">3\s*<td>.*odd', page)
    only = console.get("/topic", name=dead.dlq, reason="odd", key="k")
    found = re.search(r'href="(/letter[^"]+)"', only)
    assert found
    letter = console.get(found[1].replace("&amp;", "&"))
    assert "00000000  00 ff" in letter
    assert EVIL not in letter

    assert 6 == dead.backlog()
    assert before == dead.cluster.admin().topics.stats(dead.dlq)["subscriptions"].keys()


def test_depth_over_time(console, dead) -> None:
    """A line appears by itself, and follows the letters."""
    dead.create("keep")
    eventually(lambda: "0 letters in the last" in console.get("/topic", name=dead.dlq))
    dead.fill(3)
    eventually(lambda: "0 to 3 letters in the last" in console.get("/topic", name=dead.dlq))


def test_a_topic_without_a_subscription(console, dead, namespace) -> None:
    """It is listed with what it holds; a dry run finds that, and says what a redrive lacks."""
    dead.create()
    dead.fill(2)
    page = console.get("/", namespace=namespace)
    assert re.search(r'<td class="number">2 <span[^>]*>no subscription<', page)
    form = console.get("/redrive", name=dead.dlq)
    plan = console.job(console.post("/redrive/look", form, name=dead.dlq))
    assert "<strong>0</strong> would be redriven" in plan
    assert "2 stay: no topic to publish them to" in plan
    assert [] == dead.cluster.admin().subscriptions.names(dead.dlq)


def test_a_redrive_with_a_dry_run_and_a_confirmation(console, dead) -> None:
    """The dry run changes nothing; what it has shown goes back; a second click is none."""
    consumer = dead.subscribe()
    dead.fill(6)
    form = console.get("/redrive", name=dead.dlq, reason="odd")
    assert 'value="odd"' in form

    looked = console.post("/redrive/look", form, name=dead.dlq, reason="odd")
    plan = console.job(looked)
    assert "Redrive 3 letters now" in plan
    assert "3 stay: left out by the filter" in plan
    assert 6 == dead.backlog()

    plan_id = looked.headers["location"].partition("id=")[2]
    confirmed = console.post("/redrive/confirm", plan, plan=plan_id)
    assert "<strong>3</strong> redriven" in console.job(confirmed)
    again = console.post("/redrive/confirm", plan, plan=plan_id)
    assert confirmed.headers["location"] == again.headers["location"]

    messages = received(consumer, 3)
    assert {"odd-1", "odd-3", "odd-5"} == {f"odd-{each.data().decode()}" for each in messages}
    eventually(lambda: 3 == dead.backlog())
    assert "done" in console.get("/redrives")


def test_a_redrive_is_cancelled_and_goes_on(console, dead) -> None:
    """What is under way is settled; the same wishes take the rest, none twice."""
    consumer = dead.subscribe()
    dead.fill(40)
    form = console.get("/redrive", name=dead.dlq)
    wishes = {"name": dead.dlq, "rate": "5"}

    def confirmed() -> httpx2.Response:
        looked = console.post("/redrive/look", form, **wishes)
        plan = console.job(looked)
        plan_id = looked.headers["location"].partition("id=")[2]
        return console.post("/redrive/confirm", plan, plan=plan_id)

    slow = confirmed().headers["location"]
    eventually(lambda: re.search("<strong>[1-9][0-9]*</strong> redriven", console.get(slow)))
    console.post("/redrive/cancel", form, id=slow.partition("id=")[2])
    eventually(lambda: "Cancelled" in console.get(slow))
    assert 0 < dead.backlog()

    wishes["rate"] = ""
    assert "<strong>40</strong> redriven, including" in console.job(confirmed())
    received(consumer, 40)
    eventually(lambda: 0 == dead.backlog())


def test_the_end_of_the_console_settles_a_redrive(broker, namespace, dead) -> None:
    """SIGTERM in the middle loses nothing and leaves no letter in two places."""
    consumer = dead.subscribe()
    dead.fill(40)
    served = Served(broker, namespace)
    form = served.get("/redrive", name=dead.dlq)
    looked = served.post("/redrive/look", form, name=dead.dlq, rate="5")
    plan = served.job(looked)
    plan_id = looked.headers["location"].partition("id=")[2]
    path = served.post("/redrive/confirm", plan, plan=plan_id).headers["location"]
    eventually(lambda: re.search("<strong>[1-9][0-9]*</strong> redriven", served.get(path)))
    assert 0 == served.stop()

    received(consumer, 40 - dead.backlog())


def test_what_is_not_there_is_told(console, dead) -> None:
    """A topic, a letter, and a redrive of nothing."""
    assert 404 == console.client.get("/topic", params={"name": dead.dlq}).status_code
    dead.create("keep")
    parameters = {"name": dead.dlq, "id": "99999:0"}
    assert 404 == console.client.get("/letter", params=parameters).status_code
    form = console.get("/redrive", name=dead.dlq)
    plan = console.job(console.post("/redrive/look", form, name=dead.dlq))
    assert "<strong>0</strong> would be redriven" in plan
    assert "confirm" not in plan


def test_from_the_topics_to_a_redrive_in_a_browser(console, dead, browser, namespace) -> None:
    """By clicking alone; with letters of an attacker, and nothing runs."""
    consumer = dead.subscribe()
    dead.fill(2)
    payload = json.dumps({"name": EVIL, "amount": -3}).encode()
    odd = {"FAILURE_REASON": "evil", "FAILURE_MESSAGE": EVIL, "note": EVIL}
    dead.send(payload, dead.properties(4, **odd))

    browser.open(f"{console.url}?namespace={namespace}")
    browser.click("a[href*=DLQ]")
    assert EVIL in browser.text()
    browser.click("a[href*='reason=evil']")
    browser.click("td.ids a")
    assert f'"name": "{EVIL}"' in browser.text(".payload")
    browser.click("a[href*='as=hex']")
    assert browser.text(".payload").startswith("00000000  7b 22 6e")
    browser.evaluate("history.back()")
    browser.wait_for("location.search.indexOf('as=hex') < 0 && document.querySelector('.path')")
    browser.click(".path a:last-child")

    browser.click("a.button")
    browser.type("input[name=reason]", "evil")
    browser.click("form[action='/redrive/look'] button")
    browser.wait_for("document.querySelector('.confirm')")
    assert "1 would be redriven" in browser.text()
    assert 3 == dead.backlog()
    browser.click(".confirm button")
    browser.wait_for("document.querySelector('h1 .done')")
    assert "1 redriven" in browser.text()
    (message,) = received(consumer, 1)
    assert payload == message.data()


def test_the_pages_fit_a_telephone(console, dead, browser, namespace) -> None:
    """Tables scroll by themselves; no page is wider than its window."""
    dead.fill(2)
    long = "x" * 300
    more = dict.fromkeys(("FAILURE_REASON", "FAILURE_ERROR", "note"), long)
    dead.send(long.encode(), dead.properties(4, **more))
    for width in (390, 1280):
        browser.resize(width, 800)
        for page in ("/", "/topic", "/redrive", "/redrives"):
            browser.open(f"{console.url.rstrip('/')}{page}?name={dead.dlq}&namespace={namespace}")
            assert width >= browser.evaluate("document.documentElement.scrollWidth"), page
        browser.open(f"{console.url}topic?name={dead.dlq}&reason={long}")
        browser.click("td.ids a")
        assert width >= browser.evaluate("document.documentElement.scrollWidth")


def test_logging_in_with_a_browser(broker, namespace, browser, tmp_path) -> None:
    """The token, and nothing else, opens the console; scripts do not see the cookie."""
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    served = Served(broker, namespace, "--access-token-file", str(token_file))
    try:
        browser.open(served.url)
        assert "Log in" in browser.text()
        browser.type("input[name=token]", "wrong")
        browser.click("main button")
        assert "The token is wrong" in browser.text()
        browser.problems.clear()  # it tells of the 403
        browser.type("input[name=token]", TOKEN)
        browser.click("main button")
        assert namespace in browser.text("h1")
        assert "" == browser.evaluate("document.cookie")
        browser.click(".logout button")
        assert "Log in" in browser.text()
        browser.open(f"{served.url}redrives")
        assert "Log in" in browser.text()
    finally:
        assert 0 == served.stop()
