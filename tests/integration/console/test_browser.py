"""The console in a real browser."""

from __future__ import annotations

import json
import signal

from support.replay.redriving import received

EVIL = "<script>alert(1)</script>"


def test_from_the_overview_to_a_redrive_by_clicking(console, dead, browser, namespace) -> None:
    """With letters of an attacker, and nothing of them runs."""
    consumer = dead.subscribe()
    dead.fill(2)
    payload = json.dumps({"name": EVIL, "city": "Košice", "amount": -3}).encode()
    odd = {"FAILURE_REASON": "evil", "FAILURE_MESSAGE": EVIL, "note": EVIL}
    dead.send(payload, dead.properties(4, **odd))
    console.shows("3 letters", "/topic", name=dead.dlq)

    browser.open(console.url)
    link = f"#topics-1 a[href$='{dead.dlq.rpartition('/')[2]}']"
    browser.wait_for(f'document.querySelector("{link}")')
    browser.click(link)
    assert EVIL in browser.text()
    browser.click("#groups a[href*='reason=evil']")
    browser.click("#letters a[href*='letter?']")
    assert f'"name": "{EVIL}"' in browser.text(".payload")
    assert '"city": "Košice"' in browser.text(".payload")
    browser.click("a[href*='as=hex']")
    assert browser.text(".payload").startswith("00000000  7b 22 6e")
    browser.click("a[data-key=u]")
    assert "reason\nevil" in browser.text(".chips")

    browser.click(".verbs a[href*='verb=redrive']")
    assert "reason=evil" == browser.evaluate("document.querySelector('[name=filter]').value")
    browser.click("form[action='look'] button")
    browser.wait_for("document.querySelector('.confirm')")
    assert "1 would be redriven" in browser.text()
    assert 3 == dead.backlog()
    browser.click(".confirm button")
    browser.wait_for("document.querySelector('#job').innerText.includes('0 handled, 1 waiting')")
    (message,) = received(consumer, 1)
    assert payload == message.data()
    browser.wait_for("document.querySelector('h1 .done')")
    assert "1 redriven" in browser.text()
    assert "1 handled, 0 waiting, 0 dead again" in browser.text()


def test_a_page_changes_in_place_and_its_keys_work(console, dead, browser) -> None:
    """New letters do not move the list, the selection or the focus; then they are shown."""
    dead.fill(3)
    console.shows("3 letters", "/topic", name=dead.dlq)
    browser.open(f"{console.url}topic?name={dead.dlq}")
    browser.wait_for("!document.querySelector('#live').hidden")
    assert browser.evaluate("document.querySelector('#bulk button').disabled")
    for key in ("j", "j"):  # one group more than rows of letters would be another table
        browser.press(key)
    browser.press("x")
    assert "1 selected:" == browser.text("#selected")
    selected = browser.evaluate("document.querySelector('input[name=id]:checked').value")
    dead.fill(2)
    browser.wait_for("!document.querySelector('#news').hidden")
    browser.wait_for("document.querySelector('#groups').innerText.includes('3')")
    assert 3 == browser.evaluate("document.querySelectorAll('input[name=id]').length")
    assert selected == browser.evaluate("document.querySelector('input[name=id]:checked').value")

    browser.click("#bulk button[value=discard]")
    assert "1 selected letter:" in browser.text()
    assert selected in browser.text()
    browser.press("u")
    browser.wait_for("document.querySelectorAll('input[name=id]').length === 5")
    for key in ("j", "j", "x", "r"):
        browser.press(key)
    browser.wait_for("location.pathname === '/act'")
    assert "1 selected letter:" in browser.text()
    browser.press("u")
    browser.wait_for("document.querySelectorAll('input[name=id]').length === 5")
    browser.press("r")
    browser.wait_for("location.pathname === '/act'")
    assert "5 letters match now." in browser.text()
    browser.press("u")
    browser.wait_for("document.querySelectorAll('input[name=id]').length === 5")
    browser.press("/")
    assert "filter" == browser.evaluate("document.activeElement.id")
    browser.type("#filter", "reason=odd")
    browser.press("Enter")
    browser.wait_for("location.search.includes('reason=odd')")
    assert "2 letters" in browser.text("#letters")
    browser.press("?")
    assert browser.evaluate("document.querySelector('#keys').open")


def test_a_page_says_that_the_console_does_not_answer(console, browser) -> None:
    """Also if the connection stays open, as through a tunnel; then it goes on."""
    browser.open(console.url)
    says = "document.querySelector('#live').innerText === '{}'"
    browser.wait_for(says.format("live"))
    console.process.send_signal(signal.SIGSTOP)
    try:
        browser.wait_for(says.format("not up to date"))
    finally:
        console.process.send_signal(signal.SIGCONT)
    browser.wait_for(says.format("live"))


def test_a_job_is_watched_until_it_is_done(console, dead, browser) -> None:
    """Its bar moves without a reload; cancelled, it says so."""
    dead.subscribe()
    dead.fill(200)
    path = console.act(name=dead.dlq, rate="5").lstrip("/")
    browser.open(console.url + path)
    browser.evaluate("window.mine = true")
    browser.wait_for("document.querySelector('#job progress')?.value > 2")
    assert " left" in browser.text(".progress")
    browser.click("form[action='cancel'] button")
    browser.wait_for("document.querySelector('h1 .cancelled')")
    assert "Again…" in browser.text("#job")


def test_everything_works_without_scripts(console, dead, browser) -> None:
    """Selection, redrive and the end of a job, which the page waits for by itself."""
    consumer = dead.subscribe()
    dead.fill(2)
    console.shows("2 letters", "/topic", name=dead.dlq)
    browser.scripts(allowed=False)
    browser.open(f"{console.url}topic?name={dead.dlq}")
    browser.click("input[name=id]", leaves=False)
    browser.click("#bulk button[value=redrive]")
    browser.click("form[action='look'] button")
    browser.wait_for("document.querySelector('.confirm')")
    browser.click(".confirm button")
    received(consumer, 1)
    browser.wait_for("document.querySelector('h1 .done')")


def test_pages_are_accessible(console, dead, browser, axe) -> None:
    """Names, contrast and order, as axe checks them: light and wide, dark and narrow."""
    dead.subscribe()
    dead.fill(60)
    console.shows("60 letters", "/topic", name=dead.dlq)
    console.done(name=dead.dlq, reason="odd", limit="2")
    name = f"name={dead.dlq}"
    pages = {
        "overview": "",
        "topic": f"topic?{name}",
        "group": f"topic?{name}&reason=odd",
        "act": f"act?{name}&verb=discard&reason=odd",
        "waiting": f"topic?name={dead.retry}",
        "jobs": "jobs",
        "audit": "audit",
        "fault": "nowhere",
    }
    for scheme, width in (("light", 1280), ("dark", 390)):
        browser.scheme(scheme)
        browser.resize(width, 900)
        for page, path in pages.items():
            browser.open(console.url + path)
            assert [] == axe(browser), (page, scheme)
            if page in {"group", "jobs"}:
                browser.click("main td a[href*='letter?'], main td a[href*='job?']")
                assert [] == axe(browser), (page, scheme)
    browser.problems.clear()  # it tells of the 404


def test_the_pages_fit_a_telephone(console, dead, browser, namespace) -> None:
    """Tables scroll by themselves; no page is wider than its window."""
    dead.fill(2)
    long = "x" * 300
    more = dict.fromkeys(("FAILURE_REASON", "FAILURE_ERROR", "note"), long)
    dead.send(json.dumps({long: [long]}).encode(), dead.properties(4, **more))
    console.shows("3 letters", "/topic", name=dead.dlq)
    for width in (390, 1280):
        browser.resize(width, 800)
        for page in ("/", "/topic", "/act", "/jobs", "/audit"):
            browser.open(f"{console.url.rstrip('/')}{page}?name={dead.dlq}&namespace={namespace}")
            assert width >= browser.evaluate("document.documentElement.scrollWidth"), page
        browser.open(f"{console.url}topic?name={dead.dlq}&reason={long}")
        assert width >= browser.evaluate("document.documentElement.scrollWidth")
        browser.click("#letters a[href*='letter?']")
        assert width >= browser.evaluate("document.documentElement.scrollWidth")
