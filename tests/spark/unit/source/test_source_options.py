"""What the source's options mean, and what is refused before anything is opened."""

from __future__ import annotations

import pytest

from pulsar_retry import ConfigError
from pulsar_retry_spark.source import topics
from pulsar_retry_spark.source.options import SourceOptions, SourceTopic

URL = "pulsar://localhost:6650"
BASE = {"service.url": URL, "topic": "orders", "subscription": "billing"}
ORDERS = "persistent://public/default/orders"
OF_BILLING = "persistent://public/default/billing"


def parse(**options: str) -> SourceOptions:
    """Parse the base options and *options*, in which `__` stands for a dot."""
    dotted = {key.replace("__", "."): value for key, value in options.items()}
    return SourceOptions.parse(BASE | dotted, streaming=True)


def test_topics_are_derived_as_a_consumer_derives_them():
    """Both of them, and the old-style names that are used where they exist."""
    assert parse().topics == (
        SourceTopic("retry", f"{ORDERS}-billing-RETRY", f"{OF_BILLING}-RETRY"),
        SourceTopic("dead_letter", f"{ORDERS}-billing-DLQ", f"{OF_BILLING}-DLQ"),
    )


def test_a_dialect_has_one_name_for_each():
    """There was no other one in TDMQ's clusters."""
    assert parse(naming="tdmq-2.6.1").topics == (
        SourceTopic("retry", f"{OF_BILLING}-retry"),
        SourceTopic("dead_letter", f"{OF_BILLING}-dlq"),
    )


def test_explicit_topics_win():
    """Each by itself, short names made full."""
    _, dead = parse(dead_letter__topic="acme/shop/dead").topics
    assert dead == SourceTopic("dead_letter", "persistent://acme/shop/dead")


@pytest.mark.parametrize(("kind", "names"), [("retry", ["r"]), ("dead_letter", ["d"])])
def test_one_kind_is_enough(kind, names):
    """The other topic is not even named."""
    options = {"service.url": URL, "retry.topic": "r", "dead_letter.topic": "d", "kind": kind}
    topics = SourceOptions.parse(options, streaming=False).topics
    assert [f"persistent://public/default/{name}" for name in names] == [t.name for t in topics]


@pytest.mark.parametrize(
    "text",
    [
        "a.*|b.*",
        "public/default/a.*|b.*",
        "public/default/a.*|public/default/b.*",
        "persistent://public/default/a.*|persistent://public/default/b.*",
    ],
)
def test_a_choice_in_a_pattern_is_one_of_topics(text):
    """Each alternative is in the namespace, which may be named."""
    options = {"service.url": URL, "admin.url": "http://b:8080", "topicsPattern": text}
    parsed = SourceOptions.parse(options, streaming=False)
    for name in ("a-x-DLQ", "b-x-DLQ", "b-x-RETRY-partition-0"):
        assert parsed.topic_of(f"persistent://public/default/{name}")
    for other in ("public/other/a-x-DLQ", "public/default/c-x-DLQ"):
        assert parsed.matched(f"persistent://{other}") is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"topic": ""}, "topic=None: expected the topic that 'billing' is a subscription of"),
        ({"subscription": ""}, "subscription=None: expected the subscription that handles"),
        ({"topic": "", "subscription": ""}, "retry.topic=None: expected topic and subscription"),
        ({"topic": "non-persistent://a/b/c"}, "topic='non-persistent://a/b/c': expected a persis"),
        ({"retry.topic": "x", "dead_letter.topic": "x"}, "retry.topic=.*expected a topic other"),
        ({"kind": "all"}, "kind='all': expected one of both, retry, dead_letter"),
        ({"starting": "middle"}, "starting='middle': expected one of earliest, latest"),
        ({"max_rows_per_batch": "0"}, "max_rows_per_batch='0': expected a whole number, 1 or more"),
        ({"discovery.seconds": "-1"}, "discovery.seconds='-1': expected a whole number"),
        ({"receive.queue": "0"}, "receive.queue='0': expected a whole number"),
        ({"fail_on_data_loss": "maybe"}, "fail_on_data_loss='maybe': expected true or false"),
        ({"max_rows_per_bach": "1"}, "did you mean max_rows_per_batch"),
    ],
)
def test_what_is_not_acceptable_is_named(change, text):
    """With the option, its value and what is accepted."""
    with pytest.raises(ConfigError, match=text):
        SourceOptions.parse(BASE | change, streaming=True)


@pytest.mark.parametrize(
    "change",
    [
        {"subscription.reader": "mine"},
        {"starting": "latest"},
        {"max_rows_per_batch": "10"},
        {"discovery.seconds": "1"},
    ],
)
def test_what_is_for_streams_is_refused_in_a_batch(change):
    """Who gives it expects that it changes what is read."""
    name = next(iter(change))
    with pytest.raises(ConfigError, match=f"{name}=.* no value in spark.read.* for readStream"):
        SourceOptions.parse(BASE | change, streaming=False)


def test_a_partition_that_is_listed_with_its_topic_is_read_once(monkeypatch):
    """A batch query would have each of its rows twice."""

    class Client:
        def get_topic_partitions(self, topic):
            return [topic if "-partition-" in topic else f"{topic}-partition-0"]

    monkeypatch.setattr(topics, "exists", lambda _client, _name: True)
    names = f"{ORDERS}-billing-DLQ,{ORDERS}-billing-DLQ-partition-0"
    options = SourceOptions.parse({"service.url": URL, "topics": names}, streaming=False)
    (found,) = topics.existing(Client(), options)
    assert f"{ORDERS}-billing-DLQ-partition-0" == found.name


def test_defaults_are_safe():
    """Everything is read, from the start, and lost data is an error."""
    options = parse()
    assert ("pulsar-failures", "earliest", None) == (
        options.subscription,
        options.starting,
        options.max_rows,
    )
    assert (True, 30, 1000) == (options.fail_on_data_loss, options.discovery, options.queue)


def test_partitions_belong_to_their_topics():
    """Under the new name and the old one; a topic that was named may be a partition itself."""
    options = parse(dead_letter__topic="dead-partition-7")
    kinds = {
        name: options.topic_of(name).kind
        for name in (
            f"{ORDERS}-billing-RETRY",
            f"{ORDERS}-billing-RETRY-partition-3",
            f"{OF_BILLING}-RETRY-partition-0",
            "persistent://public/default/dead-partition-7",
        )
    }
    assert ["retry", "retry", "retry", "dead_letter"] == list(kinds.values())
    with pytest.raises(
        ConfigError, match="checkpointLocation: it belongs to a query on persistent://x"
    ):
        options.topic_of("persistent://x/y/z")
