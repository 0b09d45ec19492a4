"""The console on a real broker, by HTTP."""

from __future__ import annotations

import html
import json
import re
import urllib.parse

import pulsar

import pulsar_retry as pr
from support.console import Served
from support.encrypting import key_files
from support.reading import SUBSCRIPTION
from support.replay.redriving import received
from support.waiting import eventually

EVIL = "<script>alert(1)</script>"


def test_looking_consumes_nothing(console, dead, namespace) -> None:
    """Not even a subscription is left; every page tells of the letters."""
    dead.create("keep", "other")
    dead.fill(5)
    dead.send(b"\x00\xff", dead.properties(7, FAILURE_MESSAGE=EVIL), partition_key="k")
    before = dead.cluster.admin().topics.stats(dead.dlq)["subscriptions"].keys()

    page = console.shows('<td class="number">6', "/", namespace=namespace)
    assert f">{dead.dlq.rpartition('/')[2]}</a>" in page
    group = r'<td class="number">3\n[^§]*<td class="extra">odd'
    page = console.shows(group, "/topic", name=dead.dlq)
    assert "6 letters" in page
    only = console.get("/topic", name=dead.dlq, reason="odd", key="k")
    assert "1 letter," in only
    found = re.search(r'href="(letter[^"]+)"', only)
    assert found
    path = found[1].replace("&amp;", "&")
    letter = console.get(path)
    assert "00000000  00 ff" in letter
    assert EVIL not in letter
    assert b"\x00\xff" == console.client.get(path.replace("letter", "payload", 1)).content

    assert 6 == dead.backlog()
    assert before == dead.cluster.admin().topics.stats(dead.dlq)["subscriptions"].keys()


def test_pages_follow_arrivals_and_acknowledgements(console, dead) -> None:
    """Also when a subscription is moved back, and in each partition."""
    dead.create("keep", partitions=2)
    dead.fill(5)
    console.shows("5 letters", "/topic", name=dead.dlq)
    consumer = dead.client.subscribe(dead.dlq, "keep", consumer_type=pulsar.ConsumerType.Shared)
    received(consumer, 5)
    consumer.close()
    console.shows("No letters", "/topic", name=dead.dlq)
    for each in dead.cluster.admin().topics.partition_names(dead.dlq):
        dead.cluster.admin().subscriptions.reset(each, "keep", "earliest")
    console.shows("5 letters", "/topic", name=dead.dlq)


def test_letters_that_cannot_be_read_are_counted(console, dead, namespace, tmp_path) -> None:
    """An encrypted one, of which the console has no key, hides no other one."""
    dead.create("keep", partitions=2)
    dead.fill(4)
    keys = pulsar.CryptoKeyReader(*key_files(tmp_path))
    producer = dead.client.create_producer(dead.dlq, encryption_key="k", crypto_key_reader=keys)
    producer.send(b"secret")
    producer.close()
    page = console.shows("1 letter cannot be read here", "/topic", name=dead.dlq)
    assert "4 letters, the oldest first" in page
    console.shows('<td class="number">5', "/", namespace=namespace)


def test_paging_search_and_export_of_many(console, dead) -> None:
    """Past the first 50; each letter is on one page; a search reads payloads."""
    dead.create("keep")
    dead.fill(120)
    dead.send("“Košice” 99".encode(), dead.properties(3, tenant="7"))
    console.shows("121 letters", "/topic", name=dead.dlq)
    seen, path, parameters = [], "/topic", {"name": dead.dlq}
    while True:
        page = console.get(path, **parameters)
        seen += re.findall('name="id" value="([^"]+)"', page)
        following = re.search(r'<a class="right" href="([^"]+)" rel="next"', page)
        if following is None:
            break
        path, parameters = following[1].replace("&amp;", "&"), {}
    assert 121 == len(seen) == len(set(seen))
    for found in ({"search": "“košice”"}, {"property": "tenant=7"}):
        page = console.get("/topic", name=dead.dlq, **found)
        assert [seen[-1]] == re.findall('name="id" value="([^"]+)"', page)
        assert "1 found; 121 letters were read" in page
    lines = console.get("/export", name=dead.dlq, reason="odd").splitlines()
    assert 61 == len(lines)
    assert "“Košice” 99" == json.loads(lines[-1])["payload"]


def test_a_dead_letter_topic_with_another_name(broker, dead, client, namespace) -> None:
    """It is listed as its letters say; a redrive of it needs a tick."""
    consumer = dead.subscribe()
    graves = f"persistent://{namespace}/graveyard"
    client.subscribe(graves, "ops-team").close()
    producer = client.create_producer(graves, batching_enabled=False)
    producer.send(b"1", properties=dead.properties(1))
    served = Served(broker, namespace)
    try:
        page = served.shows(">graveyard<", "/", namespace=namespace)
        assert f"{SUBSCRIPTION} <span" in page
        served.shows("1 letter,", "/topic", name=graves)
        page = served.get("/act", name=graves)
        form = {"topic": dead.topic, "subscription": SUBSCRIPTION}
        assert form == {each: re.search(f'name="{each}" value="(.*?)"', page)[1] for each in form}
        form |= {"name": graves}
        _, refused = served.look(**form)
        assert "does not have the name of a dead-letter or retry topic" in refused
        assert "<strong>1</strong> redriven" in served.done(**form, any_topic="yes")
    finally:
        assert 0 == served.stop()
    received(consumer, 1)


def test_a_topic_without_a_subscription(console, dead, namespace) -> None:
    """It is listed with what it holds; a dry run finds that, and says what a redrive lacks."""
    dead.create()
    dead.fill(2)
    page = console.shows(r'<td class="number">2 <span', "/", namespace=namespace)
    assert "no subscription<" in page
    _, plan = console.look(name=dead.dlq)
    assert "<strong>0</strong> would be redriven" in plan
    assert "stay: no topic to publish them to" in plan
    assert [] == dead.cluster.admin().subscriptions.names(dead.dlq)


def test_a_redrive_with_a_dry_run_and_a_confirmation(console, dead) -> None:
    """The dry run changes nothing; what it has shown goes back; a second click is none."""
    consumer = dead.subscribe()
    dead.fill(6)
    form = console.get("/act", name=dead.dlq, verb="redrive", reason="odd")
    assert 'value="reason=odd"' in form

    _, mistyped = console.look(name=dead.dlq, filter="reason=ood", why="INC-7")
    assert re.search("No letter matches. There are:[^§]*<td>even[^§]*<td>odd", mistyped)
    assert re.search('href="act[^"]*reason=ood[^"]*">Change', mistyped)

    plan_id, plan = console.look(name=dead.dlq, filter="reason=odd", why="INC-7")
    assert "Redrive 3 letters now" in plan
    assert "stay: left out by the filter" in plan
    assert 6 == dead.backlog()

    confirmed = console.post("/confirm", plan=plan_id)
    job = console.ended(confirmed)
    assert "<strong>3</strong> redriven" in job
    assert f"to {dead.retry}" in job
    again = console.post("/confirm", plan=plan_id)
    assert confirmed.headers["location"] == again.headers["location"]

    messages = received(consumer, 3)
    assert {"odd-1", "odd-3", "odd-5"} == {f"odd-{each.data().decode()}" for each in messages}
    eventually(lambda: 3 == dead.backlog())
    assert ">done<" in console.get("/jobs")
    audit = console.get("/audit")
    assert "INC-7" in audit
    assert "reason odd" in audit


def test_a_redrive_of_selected_letters(console, dead) -> None:
    """Of these, and of no others."""
    consumer = dead.subscribe()
    dead.fill(6)
    page = console.shows("6 letters", "/topic", name=dead.dlq)
    ids = re.findall('name="id" value="([^"]+)"', page)
    assert "2</strong> selected letters" in console.get(
        "/act", name=dead.dlq, verb="redrive", id=[ids[1], ids[4]]
    )
    assert "<strong>2</strong> redriven" in console.done(name=dead.dlq, id=[ids[1], ids[4]])
    assert {b"1", b"4"} == {each.data() for each in received(consumer, 2)}


def test_discarding_is_in_the_audit_log(console, dead) -> None:
    """Nothing is removed without a choice; only what was chosen is."""
    dead.create("pulsar-retry")
    dead.fill(6)
    refused = console.post("/look", name=dead.dlq, verb="discard")
    assert 400 == refused.status_code
    discarded = console.done(name=dead.dlq, verb="discard", reason="odd", why="INC-1")
    assert "<strong>3</strong> discarded" in discarded
    eventually(lambda: 3 == dead.backlog("pulsar-retry"))
    console.shows("3 letters", "/topic", name=dead.dlq)
    discarded = console.done(name=dead.dlq, verb="discard", everything="yes")
    assert "<strong>3</strong> discarded" in discarded
    eventually(lambda: 0 == dead.backlog("pulsar-retry"))
    assert ">discard " in console.get("/audit")


def test_waiting_letters_are_made_due_and_cancelled(console, dead, topic, client) -> None:
    """With the time that each still waits, while their consumer goes on."""
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=pr.DeadLetterPolicy(5),
    )
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number, partition_key=f"customer-{number}")
        consumer.reconsume_later(consumer.receive(60_000), delay=3600)
    page = console.shows("3 letters", "/topic", name=dead.retry)
    assert "in 60 min" in page or "in 1 h" in page
    form = {"name": dead.retry, "key": "customer-1"}
    console.shows("at once, as the attempts that they are", "/act", verb="redrive", **form)
    assert "<strong>1</strong> discarded" in console.done(verb="discard", **form)
    assert "<strong>2</strong> redriven" in console.done(name=dead.retry, to="retry")
    messages = received(consumer, 2)
    assert {(b"0", 2), (b"2", 2)} == {(each.data(), pr.attempt_of(each)) for each in messages}


def test_letters_are_moved_to_another_topic(console, dead, topic, client) -> None:
    """One that keeps them."""
    dead.subscribe()
    dead.fill(4)
    bench = f"{topic}-bench"
    keeper = client.subscribe(bench, "keep", consumer_type=pulsar.ConsumerType.Shared)
    moved = console.done(name=dead.dlq, reason="odd", to="topic", target=bench)
    assert "<strong>2</strong> redriven" in moved
    assert {b"1", b"3"} == {each.data() for each in received(keeper, 2)}


def test_a_killed_console_knows_what_was_not_ended(broker, namespace, dead) -> None:
    """By the audit log; ordered again from there, nothing is lost."""
    consumer = dead.subscribe()
    dead.fill(60)
    served = Served(broker, namespace)
    path = served.act(name=dead.dlq, rate="3", reason="odd")
    served.shows("<strong>(?:[5-9]|[1-9][0-9])</strong> of about 30 redriven", path)
    served.kill()

    again = Served(broker, namespace)
    try:
        audit = again.get("/audit")
        (address,) = re.findall('not ended <a href="([^"]+)">Again', audit)
        form = urllib.parse.parse_qsl(html.unescape(address).partition("?")[2])
        assert {"name": dead.dlq, "verb": "redrive", "rate": "3", "reason": "odd"} == dict(form)
        assert f"{dead.backlog() - 30} letters match now" in again.get(html.unescape(address))
        job = again.done(**dict(form) | {"rate": ""})
        assert "kind done" in job
    finally:
        assert 0 == again.stop()
    numbers = set()
    while len(numbers) < 30:  # the last moment before the kill may come twice
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        numbers.add(message.data())
    eventually(lambda: 30 == dead.backlog())


def test_the_audit_log_names_the_user_of_a_proxy(broker, namespace, dead) -> None:
    """Also of a redrive; a request that does not come through the proxy is refused."""
    consumer = dead.subscribe()
    dead.fill(2)
    served = Served(broker, namespace, "--user-header", "X-Forwarded-User")
    try:
        assert 401 == served.client.get("/").status_code
        served.client.headers["x-forwarded-user"] = "ada"
        assert "<strong>1</strong> redriven" in served.done(name=dead.dlq, reason="odd")
        received(consumer, 1)
        assert re.search('<td>ada\n<td class="text">redrive ', served.get("/audit"))
    finally:
        assert 0 == served.stop()


def test_what_is_not_there_is_told(console, dead) -> None:
    """A topic, a letter, and a redrive of nothing."""
    for page in ("/topic", "/act"):
        parameters = {"name": dead.dlq, "reason": "x"}
        assert 404 == console.client.get(page, params=parameters).status_code
    dead.create("keep")
    parameters = {"name": dead.dlq, "id": "99999:0"}
    assert 404 == console.client.get("/letter", params=parameters).status_code
    _, plan = console.look(name=dead.dlq)
    assert "<strong>0</strong> would be redriven" in plan
    assert 'action="/act/confirm"' not in plan
