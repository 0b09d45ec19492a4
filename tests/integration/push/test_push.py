"""The dispatcher on a real broker, posting to a real HTTP server."""

from __future__ import annotations

import base64
import contextlib
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import pulsar
import pytest
from prometheus_client import CollectorRegistry

import pulsar_retry as pr
from pulsar_retry.push import pacing
from support.push.receiving import SOON, Receiver, Request, Say, answer, no_content, tls_contexts
from support.reading import SUBSCRIPTION, dead_letter_topic, retry_topic
from support.waiting import eventually

ACKS = (102, 200, 201, 202, 204)
FAST = pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate())


def payload(request: Request) -> bytes:
    """Return the payload of a wrapped request."""
    return base64.b64decode(request.data())


@pytest.fixture
def push(
    client: pr.Client, topic: str, receiver: Receiver
) -> Iterator[Callable[..., pr.push.Dispatcher]]:
    """Return a function that starts a dispatcher of the test's topic; it is stopped at the end."""
    started = []

    def push(
        endpoint: str = receiver.url, *, paused: bool = False, **options: Any
    ) -> pr.push.Dispatcher:
        # On a busy machine an answer may take longer than usual deadlines.
        options.setdefault("ack_deadline", 600)
        dispatcher = pr.push.Dispatcher(client, topic, SUBSCRIPTION, endpoint, **options)
        started.append(dispatcher)
        if paused:
            dispatcher.pause()
        return dispatcher.start()

    yield push
    for dispatcher in started:
        dispatcher.stop("abandon")


@pytest.fixture
def release(receiver: Receiver) -> Iterator[threading.Event]:
    """Give what the endpoint waits for before it answers."""
    release = threading.Event()

    def act(request: Request) -> Say:
        release.wait(SOON)
        return no_content(request)

    receiver.act = act
    yield release
    release.set()


def drained(admin: Any, topic: str) -> Callable[[], bool]:
    """Return a condition: everything is acknowledged."""
    return lambda: admin.backlog(topic, SUBSCRIPTION) == 0


def test_the_envelope(push, publish, receiver, topic):
    """Both spellings, base64, attributes, time, key and subscription; no attempt without a DLQ."""
    push()
    began = int(1000 * time.time()) / 1000
    message_id = publish(b"\xff\x00tea", properties={"a": "b"}, partition_key="k")
    receiver.wait_for(1)
    (request,) = receiver.requests
    body = request.json()
    message = body["message"]
    number = f"{message_id.ledger_id()}:{message_id.entry_id()}:-1"
    assert {
        "message": {
            "attributes": {"a": "b"},
            "data": "/wB0ZWE=",
            "messageId": number,
            "message_id": number,
            "orderingKey": "k",
            "publishTime": message["publishTime"],
            "publish_time": message["publishTime"],
        },
        "subscription": f"projects/public/subscriptions/{SUBSCRIPTION}",
    } == body
    assert "application/json" == request.headers["Content-Type"]
    assert began <= _seconds(message["publishTime"]) <= time.time()


def _seconds(text: str) -> float:
    from datetime import datetime

    assert text.endswith("Z")
    return datetime.fromisoformat(text).timestamp()


def test_the_status_decides(push, publish, receiver, admin, topic):
    """Each status that is no acknowledgement brings the message back; the next attempt ends it."""
    statuses = [200, 203, 201, 301, 202, 404, 204, 500, 102, 503]
    seen: Counter[bytes] = Counter()

    def act(request: Request) -> Say:
        content = payload(request)
        seen[content] += 1
        if seen[content] > 1:
            return no_content(request)
        status = int(content)
        if status == 102:
            return Say(b"HTTP/1.1 102 Processing\r\n\r\n", "close")
        return Say(b"HTTP/1.1 %d Status\r\nContent-Length: 0\r\n\r\n" % status, "close")

    receiver.act = act
    push()
    for status in statuses:
        publish(b"%d" % status)
    eventually(lambda: len(seen) == len(statuses))
    eventually(drained(admin, topic))
    assert {b"%d" % each: 1 if each in ACKS else 2 for each in statuses} == seen


def test_without_a_policy_a_nack_is_a_redelivery(push, publish, receiver, admin, topic):
    """No letter is written; the message comes back with the same id."""
    receiver.act = lambda r: answer(500) if len(receiver.requests) < 4 else no_content(r)
    push()
    publish(b"tea")
    receiver.wait_for(4)
    eventually(drained(admin, topic))
    assert 1 == len({request.json()["message"]["messageId"] for request in receiver.requests})
    assert [topic] == admin.topics(topic.split("://")[1].rpartition("/")[0])
    assert ["1", "2", "3", "4"] == [
        each.headers["X-Pulsar-Retry-Attempt"] for each in receiver.requests
    ]


def test_with_a_policy_retries_go_by_letters(push, publish, receiver, dead_letters):
    """The attempt is told, id and time stay, attributes are the producer's; then it is dead."""
    receiver.act = lambda _request: answer(500)
    push(retry_policy=FAST, dead_letter_policy=pr.DeadLetterPolicy(2))
    publish(b"tea", properties={"a": "b"})
    (dead,) = dead_letters(1)
    failure = pr.DeadLetter.of(dead).failure
    assert ("retries-exhausted", "PushNacked", 3) == (
        failure.reason,
        failure.error,
        failure.attempt,
    )
    assert "answered 500" in (failure.message or "")
    assert "/push" not in (failure.message or "")
    bodies = [request.json() for request in receiver.requests]
    assert [1, 2, 3] == [body["deliveryAttempt"] for body in bodies]
    assert 1 == len({str(sorted(body["message"].items())) for body in bodies})
    assert {"a": "b"} == bodies[2]["message"]["attributes"]


def test_failures_are_told(push, publish, receiver, dead_letters, caplog, monkeypatch):
    """Each kind is one line of the log, and one fingerprint; letters have the endpoint's words."""
    monkeypatch.setattr(pacing, "LONGEST", 0.1)  # 12 failures, one after the other, take minutes
    statuses = (400, 401, 404, 410, 500)

    def act(request: Request) -> Say:
        text = payload(request)
        if text == b"closed":
            return Say(b"", "close")
        return answer(int(text), b"not today,\n" + request.line.encode())

    receiver.act = act
    with caplog.at_level("WARNING", logger="pulsar_retry"):
        push(retry_policy=pr.RetryPolicy(max_attempts=2, backoff=pr.Immediate()))
        for each in (*statuses, "closed"):
            publish(str(each).encode())
        letters = [each.properties() for each in dead_letters(6)]
    assert 6 == len({each["FAILURE_FINGERPRINT"] for each in letters})
    assert not any("FAILURE_TRACEBACK" in each for each in letters)
    told = {each["FAILURE_MESSAGE"].partition("answered ")[2] for each in letters}
    assert {f"{status}\nnot today, POST … HTTP/1.1" for status in statuses} | {""} == told
    lines = [record.getMessage() for record in caplog.records]
    for what in ("is retried", "is dead-lettered"):
        told_of = [line.rpartition(": ")[2] for line in lines if what in line]
        for status in statuses:
            assert 1 == told_of.count(f"answered {status}"), lines
        assert any("answered" not in line for line in told_of), lines
    assert not any("not today" in line for line in lines)


@pytest.mark.parametrize("policy", [None, pr.RetryPolicy(backoff=pr.Fixed(600))])
def test_statuses_that_are_final(push, publish, receiver, dead_letters, policy):
    """Their messages are dead-lettered at once, with the answer; other failures come again."""

    def act(request: Request) -> Say:
        return answer(int(payload(request)), b"no such hook")

    receiver.act = act
    push(dead_letter_statuses={410, 422}, retry_policy=policy)
    publish(b"500")
    receiver.wait_for(1)
    for status in (410, 422):
        publish(b"%d" % status)
    found = {each.data(): pr.DeadLetter.of(each).failure for each in dead_letters(2)}
    for status in (410, 422):
        failure = found[b"%d" % status]
        assert ("not-retryable", "PushNacked", 1) == (
            failure.reason,
            failure.error,
            failure.attempt,
        )
        assert f"answered {status}" in (failure.message or "")
        assert "no such hook" in (failure.message or "")
    posted = Counter(map(payload, receiver.requests))
    assert (1, 1) == (posted[b"410"], posted[b"422"])


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_an_endpoint_that_asks_to_wait(push, publish, receiver, admin, topic, status, form):
    """Nothing is posted meanwhile: not this message, and no other one."""
    posted: list[tuple[float, bytes]] = []
    until = 0.0

    def act(request: Request) -> Say:
        nonlocal until
        posted.append((time.time(), payload(request)))
        if len(posted) > 1:
            return no_content(request)
        until = math.ceil(time.time()) + 3
        wait = formatdate(until, usegmt=True) if form == "date" else f"{until - time.time():.3f}"
        return answer(status, b"", f"Retry-After: {wait}")

    receiver.act = act
    dispatcher = push(max_outstanding=1)
    publish(b"first")
    receiver.wait_for(1)
    for number in range(5):
        publish(b"%d" % number)
    eventually(lambda: dispatcher.pace.delay > 0.5)
    receiver.wait_for(7)
    eventually(drained(admin, topic))
    assert all(when >= until - 0.1 for when, _ in posted[1:])
    assert {b"first", *(b"%d" % number for number in range(5))} == {each for _, each in posted}


def test_a_rate(push, client, receiver, admin, topic):
    """No more are posted than it says; what waits is not hoarded."""
    times: list[float] = []

    def act(request: Request) -> Say:
        times.append(time.monotonic())
        return no_content(request)

    receiver.act = act
    with contextlib.closing(client.create_producer(topic)) as producer:
        for number in range(40):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
    began, most = time.monotonic(), 0
    dispatcher = push(max_rate=10)
    while len(times) < 40:
        most = max(most, dispatcher.in_hand[0])
        time.sleep(0.05)
    eventually(drained(admin, topic))
    assert times[-1] - began >= 39 / 10 - 0.05  # they may come early by the time of a late one
    assert most <= 10 + 2


def test_order_by_key(push, publish, receiver, admin, topic):
    """On Key_Shared a failed key is attempted again before its next message; others flow."""
    seen: list[bytes] = []
    failures = Counter({b"a1": 2})

    def act(request: Request) -> Say:
        content = payload(request)
        seen.append(content)
        failures[content] -= 1
        return answer(500) if failures[content] >= 0 else no_content(request)

    receiver.act = act
    dispatcher = push(
        consumer_type=pulsar.ConsumerType.KeyShared,
        retry_policy=pr.RetryPolicy(max_attempts=5, backoff=pr.Fixed(0.1)),
        dead_letter_policy=pr.DeadLetterPolicy(4),
    )
    for key in "ab":
        for number in range(1, 4):
            publish(f"{key}{number}".encode(), partition_key=key)
    eventually(drained(admin, topic))
    assert [b"a1", b"a1", b"a1", b"a2", b"a3"] == [each for each in seen if each[:1] == b"a"]
    assert [b"b1", b"b2", b"b3"] == [each for each in seen if each[:1] == b"b"]
    attempts = [r.json()["deliveryAttempt"] for r in receiver.requests if payload(r) == b"a1"]
    assert [1, 2, 3] == attempts
    assert dispatcher.running


@pytest.mark.parametrize("most", [1, 3000])
@pytest.mark.parametrize(
    "policy", [None, pr.RetryPolicy(backoff=pr.Fixed(600))], ids=["at once", "in 10 minutes"]
)
def test_keys_that_fail_hold_up_no_other(push, publish, receiver, policy, most, monkeypatch):
    """However their retries come: at once and again and again, or after long."""
    monkeypatch.setattr(pacing, "LONGEST", 1.0)  # else what fails slows all down for minutes

    def act(request: Request) -> Say:
        return answer(500) if payload(request) == b"bad" else no_content(request)

    receiver.act = act
    push(consumer_type=pulsar.ConsumerType.KeyShared, retry_policy=policy, max_outstanding=most)
    for number in range(12):
        publish(b"bad", partition_key=f"bad{number % 4}")
    receiver.wait_for(1)
    for number in range(20):
        publish(b"%d" % number, partition_key=str(number))
    eventually(
        lambda: {b"%d" % number for number in range(20)} <= set(map(payload, receiver.requests))
    )


def test_attempts_of_messages_without_a_key(push, publish, receiver):
    """On Key_Shared a key's retries are its own, also where one worker handles all."""
    failures = 2

    def act(request: Request) -> Say:
        nonlocal failures
        if payload(request) == b"keyed" and failures:
            failures -= 1
            return answer(500)
        return no_content(request)

    receiver.act = act
    push(
        consumer_type=pulsar.ConsumerType.KeyShared,
        max_outstanding=1,
        retry_policy=pr.RetryPolicy(max_attempts=5, backoff=pr.Immediate()),
        dead_letter_policy=pr.DeadLetterPolicy(4),
    )
    publish(b"keyed", partition_key="k")
    receiver.wait_for(3)
    publish(b"keyless")
    receiver.wait_for(4)
    assert [1, 2, 3, 1] == [each.json()["deliveryAttempt"] for each in receiver.requests]


def test_over_tls(push, client, topic, admin):
    """With failures and closed connections among the answers: every message is acknowledged."""
    numbers, acked = itertools.count(1), set()

    def act(request: Request) -> Say:
        number = next(numbers)
        if number in (7, 70):
            return answer(500)
        acked.add(request.json()["message"]["messageId"])
        return no_content(request) if number % 20 else answer(204, then="close")

    with contextlib.closing(client.create_producer(topic)) as producer:
        for _ in range(200):
            producer.send_async(b"x", lambda *_: None)
        producer.flush()
    theirs, ours = tls_contexts()
    with Receiver(act, tls=theirs) as endpoint:
        dispatcher = push(
            endpoint.url, connections=pr.push.Connections(tls=ours), max_outstanding=8
        )
        eventually(drained(admin, topic))
        dispatcher.stop()
    assert 200 == len(acked)
    assert 5 < endpoint.connections < 100


def test_unwrapped(push, publish, receiver):
    """The payload is the body, and no attribute is a header."""
    push(form=pr.push.Form(wrapped=False))
    publish(b"raw \x00", properties={"color": "blue"}, ordering_key="k")
    receiver.wait_for(1)
    (request,) = receiver.requests
    assert b"raw \x00" == request.body
    sent = {"host", "content-length", "content-type", "user-agent", "idempotency-key"}
    assert sent | {"x-pulsar-retry-attempt"} == {name.lower() for name in request.headers}


def test_an_endpoint_that_is_down(push, publish, admin, topic):
    """Nothing is lost; the backoff grows while it is down, and is over when it is back."""
    with Receiver() as gone:
        port, url = gone.port, gone.url
    dispatcher = push(url)
    for number in range(30):
        publish(b"%d" % number)
    delays = set()

    def has_grown() -> bool:
        delays.add(dispatcher.pace.delay)
        return max(delays) >= 1.6

    eventually(has_grown)
    # On a busy machine not each of them is seen.
    assert delays <= {0.0, *(pacing.SHORTEST * 2**doublings for doublings in range(12))}
    assert 1 == dispatcher.pace.window
    assert 30 == admin.backlog(topic, SUBSCRIPTION)
    with Receiver(port=port) as back:
        back.wait_for(30, 180)
        eventually(drained(admin, topic))
        assert {b"%d" % number for number in range(30)} == set(map(payload, back.requests))
    eventually(lambda: 0.0 == dispatcher.pace.delay)
    assert dispatcher.pace.window > 4


def test_the_window_bounds_what_is_in_hand(push, publish, receiver, release, topic):
    """While nothing is answered, four requests are out and as many more in memory."""
    for number in range(50):
        publish(b"%d" % number)
    dispatcher = push()
    receiver.wait_for(4)
    eventually(lambda: dispatcher.pace.outstanding == 4)
    assert 4 == len(receiver.requests)
    assert 4 <= dispatcher.in_hand[0] <= 8
    release.set()
    receiver.wait_for(50)


def test_pause_and_resume(push, publish, receiver, admin, topic):
    """Paused, nothing is sent and nothing is lost."""
    dispatcher = push(paused=True)
    for number in range(10):
        publish(b"%d" % number)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 10)
    assert ([], "it is paused: paused") == (receiver.requests, dispatcher.health.reason)
    dispatcher.resume()
    receiver.wait_for(10)
    eventually(drained(admin, topic))
    dispatcher.pause()
    publish(b"later")
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 1)
    report = dispatcher.stop(timeout=120)
    assert (10, 10, 0) == (len(receiver.requests), report.acknowledged, report.abandoned)
    assert report.seconds < 100  # it does not wait until it may be sent


def test_draining_waits_for_answers(push, publish, receiver, release, admin, topic):
    """What was sent is settled by its answer."""
    dispatcher = push()
    for number in range(3):
        publish(b"%d" % number)
    receiver.wait_for(3)
    threading.Timer(0.2, release.set).start()
    report = dispatcher.stop("drain", timeout=SOON)
    assert (3, 0) == (report.acknowledged, report.abandoned)
    eventually(drained(admin, topic))


def test_draining_starts_no_request(push, publish, receiver, admin, topic):
    """What was received ahead, or failed and is to be retried in its lane, is handed back."""
    release = threading.Event()

    def act(request: Request) -> Say:
        release.wait(SOON)
        return answer(500) if payload(request) == b"0" else no_content(request)

    receiver.act = act
    for number in range(20):
        publish(b"%d" % number, partition_key=str(number))
    dispatcher = push(consumer_type=pulsar.ConsumerType.KeyShared)
    receiver.wait_for(4)
    eventually(lambda: dispatcher.in_hand[0] > 4)
    with ThreadPoolExecutor() as executor:
        stopping = executor.submit(dispatcher.stop, "drain", SOON)
        eventually(lambda: dispatcher.health.state == "stopping")
        release.set()
        report = stopping.result(2 * SOON)
    sent = {payload(request) for request in receiver.requests}
    assert (4, 4) == (len(receiver.requests), len(sent))
    assert (4 - (b"0" in sent), 0) == (report.acknowledged, report.abandoned)
    assert report.handed_back > 0
    receiver.act = no_content
    push()
    eventually(drained(admin, topic))
    assert {b"%d" % number for number in range(20)} == set(map(payload, receiver.requests))


def test_abandoning_breaks_requests_off(push, publish, receiver, admin, topic):
    """And their messages come back."""
    receiver.act = lambda _request: Say(b"", "hang")
    dispatcher = push()
    publish(b"tea")
    receiver.wait_for(1)
    report = dispatcher.stop("abandon")
    assert (0, 1) == (report.acknowledged, report.abandoned)
    receiver.act = no_content
    push()
    receiver.wait_for(2)
    eventually(drained(admin, topic))


def test_the_breaker(push, publish, receiver, admin, topic, monkeypatch):
    """An endpoint that is down makes no dead letters of messages that are fine."""
    monkeypatch.setattr(pacing, "LONGEST", 0.1)  # 16 failures, one after the other, take minutes
    receiver.act = lambda _request: answer(500)
    dispatcher = push(retry_policy=FAST)
    for number in range(20):
        publish(b"%d" % number)
    eventually(lambda: "the breaker is open" in dispatcher.health.reason)
    receiver.act = no_content
    eventually(drained(admin, topic))
    eventually(drained(admin, retry_topic(topic)))
    assert 0 == admin.published(dead_letter_topic(topic))


@pytest.mark.parametrize("policy", [None, pr.RetryPolicy(max_attempts=9)], ids=["endless", "ends"])
def test_health_while_the_endpoint_is_down(push, publish, receiver, policy):
    """It is degraded long before the breaker opens, if there is one, and well again after it."""
    receiver.act = lambda _request: answer(500)
    dispatcher = push(retry_policy=policy)
    for number in range(9):  # too few for the breaker
        publish(b"%d" % number)
    eventually(lambda: "the endpoint has acknowledged nothing" in dispatcher.health.reason)
    assert "degraded" == dispatcher.health.state
    assert "breaker" not in dispatcher.health.reason
    receiver.act = no_content
    eventually(lambda: dispatcher.health.state == "running")


def test_a_stop_before_the_start(client, topic, publish, receiver):
    """It stops nothing: the dispatcher can be started after it."""
    dispatcher = pr.push.Dispatcher(client, topic, SUBSCRIPTION, receiver.url)
    assert dispatcher.stop() is None
    with dispatcher:
        publish(b"tea")
        receiver.wait_for(1)
    assert 1 == dispatcher.result().acknowledged


def test_running_it_twice(push, publish, receiver, release, admin, topic):
    """The second call fails and the first goes on; its requests are answered."""
    dispatcher = push(dead_letter_policy=pr.DeadLetterPolicy(0))
    publish(b"tea")
    receiver.wait_for(1)
    with pytest.raises(RuntimeError, match="runs once"):
        dispatcher.run()
    release.set()
    eventually(drained(admin, topic))
    assert (1, True) == (len(receiver.requests), dispatcher.running)
    acknowledged = dispatcher.stop()
    assert acknowledged is not None
    assert (1, 0) == (acknowledged.acknowledged, acknowledged.dead_lettered)


def test_metrics(push, publish, receiver, admin, topic):
    """Requests by code, and the pace."""
    receiver.act = lambda r: answer(503) if len(receiver.requests) == 1 else no_content(r)
    push()
    publish(b"tea")
    eventually(drained(admin, topic))
    sample = pr.register_metrics(CollectorRegistry()).get_sample_value
    labels = {"topic": topic, "subscription": SUBSCRIPTION}

    def value(name: str, **more: str) -> float | None:
        return sample(f"pulsar_retry_push_{name}", labels | more)

    eventually(lambda: value("outstanding") == 0)
    assert (1, 1) == (
        value("requests_total", code="503"),
        value("requests_total", code="204"),
    )
    assert (1, 1) == (value("acked_total"), value("nacked_total"))
    assert 0 < (value("latency_seconds") or 0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endpoint": "http://example.com/"}, "endpoint='http://example.com': expected an https"),
        ({"endpoint": "https://user:pw@example.com/"}, "without user, password"),
        ({"ack_deadline": 9}, "ack_deadline=9: expected 10 to 600 seconds"),
        ({"ack_deadline": 601}, "ack_deadline=601: expected 10 to 600 seconds"),
        ({"max_outstanding": 0}, "max_outstanding=0"),
        ({"max_rate": 0}, "max_rate=0"),
        ({"max_rate": "5"}, "max_rate='5'"),
        ({"max_rate": math.nan}, "max_rate=nan"),
        ({"redelivery": "both"}, "redelivery='both'"),
        ({"flow_control": 5}, "flow_control=5"),
        ({"form": "wrapped"}, "form='wrapped': expected a Form"),
        ({"connections": "10.0.0.0/8"}, "connections='10.0.0.0/8': expected a Connections"),
        ({"letters": "plain"}, "letters='plain': expected a pulsar_retry.Letters"),
        *(
            ({"dead_letter_statuses": each}, "dead_letter_statuses=")
            for each in (410, "410", [204], [102], [600], [True], [[410]], ["410"])
        ),
    ],
)
def test_bad_arguments(client, topic, options, told):
    """They are refused before anything is opened."""
    options = {"endpoint": "https://example.com/", **options}
    with pytest.raises(pr.ConfigError, match=told) as refused:
        pr.push.Dispatcher(client, topic, SUBSCRIPTION, **options)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize("attempts", [1, 1000])
@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_failures_do_not_keep_the_rest_of_their_batch_waiting(
    push, client, topic, admin, receiver, monkeypatch, redelivery, attempts
):
    """In a long backoff the batch is given back; the broker delivers all of it again."""
    monkeypatch.setattr(
        "pulsar_retry.pull.engine.receiver._REST_AFTER", 0.25
    )  # a 20th of all times
    monkeypatch.setattr(pacing, "SHORTEST", 0.005)
    monkeypatch.setattr(pacing, "LONGEST", 3.0)
    seen: list[bytes] = []

    def act(request: Request) -> Say:
        seen.append(payload(request))
        return answer(503) if seen[-1].startswith(b"bad") else no_content(request)

    receiver.act = act
    bad = [b"bad%d" % number for number in range(12)]
    good = [b"good%d" % number for number in range(3)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    for name in bad + good:
        producer.send_async(name, lambda *_: None)
    producer.flush()
    policy = pr.RetryPolicy(max_attempts=attempts, backoff=pr.Immediate())
    push(retry_policy=policy, dead_letter_policy=pr.DeadLetterPolicy(1), redelivery=redelivery)
    eventually(lambda: {*bad, *good} == set(seen))
    if attempts > 1:
        return
    eventually(drained(admin, topic))
    assert len(bad) == admin.published(dead_letter_topic(topic))
