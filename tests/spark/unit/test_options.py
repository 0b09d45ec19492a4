"""What the sink's options mean, and what is refused before anything runs."""

from __future__ import annotations

import pytest

from pulsar_retry import ConfigError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.parsing import option_texts

URL = "pulsar://localhost:6650"
BASE = {"service.url": URL, "topic": "orders", "subscription": "billing"}


def parse(**options: str) -> SinkOptions:
    """Parse the base options and *options*, in which `__` stands for a dot."""
    return SinkOptions.parse(
        BASE | {key.replace("__", "."): value for key, value in options.items()}
    )


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


@pytest.mark.parametrize("options", [None, [("auth.token", "secret")], "secret"])
def test_options_are_a_dictionary(options):
    """The error shows no value, because it may have a token."""
    with pytest.raises(ConfigError, match=r"^options is a .*: expected a dictionary") as error:
        option_texts(options)
    assert "secret" not in str(error.value)


def test_a_count_of_rows_may_be_big():
    """A job may write more of them than an int can count."""
    assert 10**10 == parse(max_failed_rows="10000000000").max_failed_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service.url": ""}, "service.url=None: expected a URL"),
        ({"path": "orders"}, "path='orders': expected no path: use the options topic"),
        ({"max_attempts": "3000000000"}, "max_attempts='3000000000': expected a whole number, 1"),
        ({"client.io_threads": "2147483648"}, "client.io_threads='2147483648': expected a whole"),
        ({"subscription": ""}, "subscription=None: expected the subscription that handles"),
        ({"topic": ""}, "topic=None: expected the topic that 'billing' is a subscription of"),
        ({"topic": "a/b"}, "topic='a/b': expected a topic"),
        ({"topic": "non-persistent://a/b/c"}, "topic='non-persistent://a/b/c': expected a persis"),
        ({"naming": "kafka"}, "naming='kafka': expected one of pulsar, tdmq-2.9.2, tdmq-2.7.2"),
        ({"retry.topic": "orders"}, "retry.topic='persistent://public/default/orders': expected"),
        (
            {"dead_letter.topic": "orders"},
            "dead_letter.topic='persistent://public/default/orders': expected",
        ),
        ({"max_attempts": "0"}, "max_attempts='0': expected a whole number, 1 or more"),
        ({"max_attempts": "many"}, "max_attempts='many': expected a whole number"),
        ({"delay.levels": "1s often"}, "delay.levels='1s often': expected levels"),
        ({"batch.bytes": "9999999"}, "batch.bytes='9999999': expected"),
        ({"compression": "gzip"}, "compression='gzip': expected one of"),
        ({"oversize": "drop"}, "oversize='drop': expected one of fail, chunk"),
        ({"max_atempts": "3"}, "unknown option 'max_atempts': did you mean max_attempts?"),
        ({"client.io_thread": "3"}, "unknown option 'client.io_thread': did you mean"),
        ({"client.authentication": "x"}, "unknown option 'client.authentication'"),
        ({"tls.allow_insecure": "yes"}, "tls.allow_insecure='yes': expected true or false"),
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


def test_names_may_have_capitals():
    """Spark gives them in lower case."""
    assert 7 == SinkOptions.parse(BASE | {"Max_Failed_Rows": "7"}).max_failed_rows


@pytest.mark.parametrize("name", ["max.failed.rows", "maxFailedRows", "dead.letter.topic"])
def test_another_spelling_is_unknown(name):
    """The error has the right one."""
    right = "dead_letter.topic" if "dead" in name else "max_failed_rows"
    with pytest.raises(ConfigError, match=f"unknown option.*did you mean {right}"):
        SinkOptions.parse(BASE | {name: "7"})


def test_an_option_is_given_once():
    """Two values of one option are a mistake."""
    with pytest.raises(ConfigError, match=r"MAX_failed_rows: expected it only once"):
        SinkOptions.parse(BASE | {"max_failed_rows": "7", "MAX_failed_rows": "8"})


def test_a_schema_is_that_of_a_topic():
    """Which has to be named; by default there is none."""
    assert not parse().by_topic_schema
    assert parse(value__schema="topic").by_topic_schema
    with pytest.raises(ConfigError, match=r"value\.schema='avro': expected one of none, topic"):
        parse(value__schema="avro")
    named = {"service.url": URL, "retry.topic": "r", "dead_letter.topic": "d"}
    with pytest.raises(ConfigError, match="topic=None: expected the topic with the schema"):
        SinkOptions.parse({**named, "value.schema": "topic"})
