"""What every integration test uses: consumers that retry fast, and ways to look on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry import cli
from pulsar_retry.admin.client import AdminClient
from pulsar_retry.replay import Cluster, Subscription
from support.push.receiving import Receiver
from support.reading import SUBSCRIPTION, read_all
from support.replay.redriving import Dead
from support.replay.replaying import subscription_of

Subscribe = Callable[..., pr.Consumer]


@pytest.fixture
def subscribe(client: pr.Client, topic: str) -> Subscribe:
    """Return a function that subscribes to the test's topic with retries, Shared, 2 of them."""

    def subscribe(topic: Any = topic, **options: Any) -> pr.Consumer:
        options.setdefault("consumer_type", pulsar.ConsumerType.Shared)
        options.setdefault("enable_retry", True)
        options.setdefault("dead_letter_policy", pr.DeadLetterPolicy(2))
        options.setdefault("delay_levels", "100ms 200ms 300ms")
        return client.subscribe(topic, SUBSCRIPTION, **options)

    return subscribe


@pytest.fixture
def subscription(broker: Any, topic: str) -> Subscription:
    """Return the test's subscription, to be sought and snapshot."""
    return subscription_of(broker, topic)


@pytest.fixture
def consumer(subscribe: Subscribe) -> pr.Consumer:
    """Return a consumer of it that retries after an hour, for ever as far as tests go."""
    return subscribe(
        initial_position=pulsar.InitialPosition.Earliest,
        dead_letter_policy=pr.DeadLetterPolicy(100),
        delay_levels="1h",
    )


@pytest.fixture
def publish(client: pr.Client, topic: str) -> Callable[..., Any]:
    """Return a function that publishes to the test's topic, or another, and returns the id."""
    producers: dict[str, pulsar.Producer] = {}

    def publish(content: Any = b"order", *, topic: str = topic, **options: Any) -> Any:
        if topic not in producers:
            producers[topic] = client.create_producer(topic, send_timeout_millis=90_000)
        return producers[topic].send(content, **options)

    return publish


@pytest.fixture
def dead_letters(client: pr.Client, topic: str) -> Callable[..., list[pulsar.Message]]:
    """Return a function that waits for dead letters of the test's topic and returns them."""

    def dead_letters(
        count: int, topic: str = f"{topic}-{SUBSCRIPTION}-DLQ", **options: Any
    ) -> list[pulsar.Message]:
        return read_all(client, topic, count, **options)

    return dead_letters


#: Retries at once, three attempts.
THRICE = pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate())


@pytest.fixture
def start(client: pr.Client, topic: str) -> Iterator[Callable[..., pr.Subscriber]]:
    """Return a function that starts a subscriber to the test's topic; it is stopped at the end."""
    started: list[pr.Subscriber] = []

    def start(handler: Any, topic: Any = topic, **options: Any) -> pr.Subscriber:
        options.setdefault("retry_policy", THRICE)
        subscriber = client.subscriber(topic, SUBSCRIPTION, handler, **options)
        started.append(subscriber)
        return subscriber.start()

    yield start
    for subscriber in started:
        subscriber.stop("abandon")


@pytest.fixture
def dead(broker, admin, client, topic) -> Dead:
    """Give the topics of the test's subscription."""
    return Dead(broker, admin, client, topic)


@pytest.fixture
def rest(broker: Any) -> Iterator[AdminClient]:
    """Give the package's own client of the REST API."""
    with Cluster(broker.service_url, admin_url=broker.admin_url).admin() as rest:
        yield rest


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Give an endpoint that acknowledges everything, until a test says otherwise."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def environment(broker, monkeypatch) -> None:
    """Say in the environment where the broker is."""
    monkeypatch.setenv("PULSAR_SERVICE_URL", broker.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)


@pytest.fixture
def run(environment, capsys) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command here: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def run_json(run) -> Callable[..., Any]:
    """Return a function that runs the command with --json, and returns what it prints."""

    def run_json(*arguments: str) -> Any:
        code, output, errors = run(*arguments, "--json")
        assert 0 == code, errors
        return json.loads(output)

    return run_json
