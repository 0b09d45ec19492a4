"""What the sink's options mean, and what is refused before anything runs."""

from __future__ import annotations

from functools import partial

import pytest

from pulsar_retry import ConfigError
from pulsar_retry.policy.levels import DelayLevels
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.source.options import SourceOptions

URL = "pulsar://localhost:6650"
BASE = {"service.url": URL, "topic": "orders", "subscription": "billing"}


def parse(**options: str) -> SinkOptions:
    """Parse the base options and *options*, in which `__` stands for a dot."""
    return SinkOptions.parse(
        BASE | {key.replace("__", "."): value for key, value in options.items()}
    )


def test_a_dialect_names_them_otherwise():
    """TDMQ's clusters have names of their own."""
    targets = parse(naming="tdmq-2.7.2").targets
    assert "persistent://public/default/billing-RETRY" == targets.retry


@pytest.mark.parametrize(
    ("options", "retry", "dead"),
    [
        (BASE | {"retry.topic": "again"}, "again", "orders-billing-DLQ"),
        ({"service.url": URL, "retry.topic": "r", "dead_letter.topic": "d"}, "r", "d"),
        ({"service.url": URL, "dead_letter.topic": "d"}, None, "d"),
    ],
)
def test_explicit_topics_win(options, retry, dead):
    """Each by itself, short names made full; then neither topic nor subscription is needed."""
    targets = SinkOptions.parse(options).targets
    full = [each and f"persistent://public/default/{each}" for each in (retry, dead)]
    assert full == [targets.retry, targets.dead_letter]


def test_keys_have_no_case():
    """Spark makes them lower case, and Python code may not."""
    assert 3 == parse(MAX_ATTEMPTS="3").max_attempts


def test_defaults():
    """N retries as everywhere in this package, by TDMQ's levels."""
    options = parse()
    assert 17 == options.max_attempts
    assert isinstance(options.delays, DelayLevels)
    assert [1, 5, 7200] == [options.delays.delay(attempt) for attempt in (1, 2, 99)]


def test_a_count_of_rows_may_be_big():
    """A job may write more of them than an int can count."""
    assert 10**10 == parse(max_failed_rows="10000000000").max_failed_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service.url": ""}, "service.url=None: expected a URL"),
        ({"service.url": "localhost:6650"}, "service.url: expected a URL"),
        ({"path": "orders"}, "path='orders': expected no path: use the options topic"),
        ({"send.timeout_ms": "99999999999"}, "send.timeout_ms='99999999999': expected a whole"),
        ({"max_attempts": "3000000000"}, "max_attempts='3000000000': expected a whole number, 1"),
        ({"client.io_threads": "2147483648"}, "client.io_threads='2147483648': expected a whole"),
        ({"batch.delay_ms": "10"}, "batch.delay_ms: expected no such option: only batch.messages"),
        ({"window": "10"}, "window: expected no such option: pending.max limits"),
        ({"ack_tracking": "row"}, "ack_tracking: expected no such option: a task always waits"),
        ({"properties.packed": "true"}, "properties.packed: expected no such option: consumers"),
        ({"producer.name": "p"}, "producer.name: expected no such option: the sink"),
        ({"subscription": ""}, "subscription=None: expected the subscription that handles"),
        ({"topic": ""}, "topic=None: expected the topic that 'billing' is a subscription of"),
        ({"topic": "a/b"}, "topic='a/b': expected a topic"),
        ({"naming": "kafka"}, "naming='kafka': expected one of"),
        ({"retry.topic": "orders"}, "retry.topic='persistent://public/default/orders': expected"),
        (
            {"dead_letter.topic": "orders"},
            "dead_letter.topic='persistent://public/default/orders': expected",
        ),
        ({"max_attempts": "0"}, "max_attempts='0': expected a whole number, 1 or more"),
        ({"max_attempts": "many"}, "max_attempts='many': expected a whole number"),
        ({"delay": "-1"}, "delay=-1.0: expected"),
        ({"delay": "nan"}, "delay='nan': expected"),
        ({"delay": "864001"}, "delay=864001.0: expected"),
        ({"delay.levels": "1s often"}, "delay.levels='1s often': expected levels"),
        ({"delay": "1", "delay.levels": "1s"}, "delay.levels: expected only one of"),
        ({"delay": "1", "backoff.minimum": "1"}, "backoff.*: expected only one of"),
        ({"backoff.minimum": "1"}, "backoff.maximum=None: expected"),
        ({"backoff.minimum": "2", "backoff.maximum": "1"}, "backoff.maximum=1.0: expected"),
        (
            {"backoff.minimum": "1", "backoff.maximum": "2", "backoff.multiplier": "1"},
            "backoff.multiplier=1.0: expected",
        ),
        (
            {"backoff.minimum": "1", "backoff.maximum": "2", "backoff.multiplier": "0"},
            "backoff.multiplier=0.0: expected",
        ),
        ({"batch.messages": "0"}, "batch.messages='0': expected"),
        ({"batch.bytes": "9999999"}, "batch.bytes='9999999': expected"),
        ({"compression": "gzip"}, "compression='gzip': expected one of"),
        ({"oversize": "drop"}, "oversize='drop': expected one of fail, truncate, chunk"),
        ({"extra": "ignore"}, "extra='ignore': expected one of"),
        ({"rate_limit": "0"}, "rate_limit=0.0: expected rows per second"),
        ({"max_failed_rows": "-1"}, "max_failed_rows='-1': expected"),
        ({"report.topic": "a/b"}, "report.topic='a/b': expected a topic"),
        ({"max_atempts": "3"}, "unknown option 'max_atempts': did you mean max_attempts?"),
        ({"client.io_thread": "3"}, "unknown option 'client.io_thread': did you mean"),
        ({"client.io_threads": "few"}, "client.io_threads='few': expected a whole number"),
        ({"client.authentication": "x"}, "unknown option 'client.authentication'"),
        ({"tls.allow_insecure": "yes"}, "tls.allow_insecure='yes': expected true or false"),
        ({"log.level": "loud"}, "log.level='loud': expected one of"),
        ({"auth.token": "a", "auth.token_env": "b"}, "auth.token: expected at most one"),
    ],
)
def test_what_is_not_acceptable(options, message):
    """The error names the option, its value and what is accepted."""
    with pytest.raises(ConfigError) as caught:
        SinkOptions.parse(BASE | options)
    assert str(caught.value).startswith(message)


def test_a_misspelt_secret_is_not_shown():
    """An unknown option's value may be anything."""
    with pytest.raises(ConfigError) as caught:
        parse(auth__tokn="s3cret")
    assert "auth.token" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_value_has_to_be_text():
    """A number in Python code is told apart from an option that is not there."""
    with pytest.raises(ConfigError, match="max_attempts=3: expected text"):
        SinkOptions.parse(BASE | {"max_attempts": 3})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "pulsar-retry"),
        ({"initial_subscription_name": "mine"}, "mine"),
        ({"Initial_Subscription_Name": "None"}, None),
        ({"initial_subscription_name": ""}, None),
    ],
)
def test_the_subscription_that_keeps_dead_letters(given, name):
    """One is made unless somebody says that none is; on the retry topic it is the user's own."""
    parsed = parse(**given)

    keepers = parsed.targets.keepers(parsed.initial_subscription_name)
    dead, retry = parsed.targets.dead_letter, parsed.targets.retry
    assert keepers == ({} if name is None else {dead: name, retry: parsed.targets.subscription})


def test_a_topic_without_a_known_subscriber_gets_none():
    """A retry topic that is named by itself says nothing of who handles it."""
    parsed = SinkOptions.parse(
        {"service.url": "pulsar://localhost", "retry.topic": "r", "dead_letter.topic": "d"}
    )

    assert {"persistent://public/default/d": "k"} == parsed.targets.keepers("k")


@pytest.mark.parametrize("name", ["max_failed_rows", "max.failed.rows", "maxFailedRows"])
def test_names_may_have_dots_underscores_or_capitals(name):
    """Nobody has to remember which one an option has."""
    assert 7 == SinkOptions.parse(BASE | {name: "7"}).max_failed_rows


def test_an_option_is_given_once():
    """Two names of one option are a mistake."""
    with pytest.raises(
        ConfigError, match=r"max.failed.rows: expected it only once, but max_failed"
    ):
        SinkOptions.parse(BASE | {"max_failed_rows": "7", "max.failed.rows": "8"})


def source(*, streaming: bool = True, **options: str) -> SourceOptions:
    """Parse options of the source."""
    return SourceOptions.parse(BASE | options, streaming=streaming)


def test_names_of_other_sources():
    """Those of Spark's Kafka source and of pulsar-spark."""
    parsed = source(
        startingOffsets="latest",
        failOnDataLoss="false",
        maxOffsetsPerTrigger="10",
        predefinedSubscription="mine",
        includeHeaders="true",
        **{"pulsar.client.connectionTimeoutMs": "1000"},
    )
    assert ("latest", False, 10) == (parsed.starting, parsed.fail_on_data_loss, parsed.max_rows)
    assert "mine" == parsed.subscription
    assert (("connection_timeout_ms", 1000),) == parsed.connection.arguments


def test_subscribe_is_the_topic():
    """As in Spark's Kafka source."""
    options = {"service.url": URL, "subscribe": "orders", "subscription": "billing"}
    assert SourceOptions.parse(options, streaming=False) == source(streaming=False)


def test_subscribe_is_no_list():
    """There it may be: here it would be the name of a topic that nobody reads."""
    options = {"service.url": URL, "Subscribe": "orders,refunds", "subscription": "billing"}
    for parse_them in (SinkOptions.parse, partial(SourceOptions.parse, streaming=False)):
        with pytest.raises(ConfigError, match="Subscribe='orders,refunds': expected one topic"):
            parse_them(options)


def test_a_batch_starts_at_the_earliest_anyway():
    """So saying it is no mistake; another start is."""
    assert source(streaming=False, startingOffsets="earliest") == source(streaming=False)
    with pytest.raises(ConfigError, match="starting='latest'"):
        source(streaming=False, startingOffsets="latest")


def test_headers_cannot_be_left_out():
    """A user who wants that is told."""
    with pytest.raises(ConfigError, match="include_headers='false': expected true"):
        source(includeHeaders="false")


def test_a_schema_is_that_of_a_topic():
    """Which has to be named; by default there is none."""
    assert not parse().by_topic_schema
    assert parse(value__schema="topic").by_topic_schema
    with pytest.raises(ConfigError, match=r"value\.schema='avro': expected one of none, topic"):
        parse(value__schema="avro")
    named = {"service.url": URL, "retry.topic": "r", "dead_letter.topic": "d"}
    with pytest.raises(ConfigError, match="topic=None: expected the topic with the schema"):
        SinkOptions.parse({**named, "value.schema": "topic"})
