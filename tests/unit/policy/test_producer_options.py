"""How letters are published: the options of their producers."""

from __future__ import annotations

import re
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.handoff.producers import arguments_of
from pulsar_retry.policy.letter_producers import LetterProducerOptions

TOPIC = "persistent://public/default/orders-billing-RETRY"


@pytest.mark.parametrize("name", pulsar.CompressionType.__members__)
def test_compression_is_named_or_pulsar_clients_member(name: str) -> None:
    """Both mean the same."""
    member = pulsar.CompressionType.__members__[name]
    by_name, by_member = (
        pr.ProducerOptions(compression_type=each)  # type: ignore[arg-type]
        for each in (name.lower(), member)
    )
    assert by_name == by_member
    expected = pulsar.CompressionType.NONE if name == "NONE" else member
    found = arguments_of(by_name, TOPIC).get("compression_type", pulsar.CompressionType.NONE)
    assert expected == found


def test_everything_reaches_pulsar_client() -> None:
    """With the names of its own arguments."""
    reader = object()
    options = pr.ProducerOptions(
        "lz4",
        chunking_enabled=False,
        properties={"team": "billing"},
        encryption_key="orders",
        crypto_key_reader=reader,
        arguments=lambda _: {"lazy_start_partitioned_producers": True},
    )
    assert {
        "compression_type": pulsar.CompressionType.LZ4,
        "chunking_enabled": False,
        "batching_enabled": False,
        "lazy_start_partitioned_producers": True,
        "properties": {"team": "billing"},
        "encryption_key": "orders",
        "crypto_key_reader": reader,
    } == arguments_of(options, TOPIC)


def test_a_function_adds_arguments_for_each_topic() -> None:
    """It knows the topic, and what it returns wins."""
    options = pr.ProducerOptions(
        properties={"team": "billing"}, arguments=lambda topic: {"properties": {"of": topic}}
    )
    assert {"of": TOPIC} == arguments_of(options, TOPIC)["properties"]


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (
            {"schema": None, "batching_enabled": True, "batching_max_messages": 50},
            (
                "arguments='batching_enabled, batching_max_messages, schema': expected only "
                "arguments that letters do not rely on"
            ),
        ),
        (None, "arguments=None: expected a function that returns a mapping"),
    ],
)
def test_what_letters_rely_on_cannot_be_replaced(added: Any, message: str) -> None:
    """Delays need single messages, for example."""
    options = pr.ProducerOptions(arguments=lambda _: added)
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(message)}$"):
        arguments_of(options, TOPIC)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"compression_type": "zst"},
            'compression_type=\'zst\': expected "none", "lz4", "zlib", "zstd", "snappy"',
        ),
        (
            {"compression_type": 3},
            'compression_type=3: expected "none", "lz4", "zlib", "zstd", "snappy"',
        ),
        ({"chunking_enabled": "no"}, "chunking_enabled='no': expected a bool"),
        (
            {"properties": {"team": 1}},
            "properties={'team': 1}: expected a mapping of names to values, both str",
        ),
        ({"properties": "a"}, "properties='a': expected a mapping of names to values, both str"),
        ({"encryption_key": " "}, "encryption_key=' ': expected the name of a key, or None"),
        ({"arguments": {}}, "arguments={}: expected a function of the topic, or None"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    """The error names the option, its value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(message)}$"):
        pr.ProducerOptions(**options)


@pytest.mark.parametrize("name", ["retry_producer", "dead_letter_producer"])
def test_a_policy_takes_only_these_options(name: str) -> None:
    """A dict is refused, also by the preset of Pub/Sub."""
    for make in (pr.DeadLetterPolicy, pr.DeadLetterPolicy.pubsub):
        with pytest.raises(pr.ConfigError, match=rf"{name}={{}}: expected a pulsar_retry\.Produc"):
            make(**{name: {}})  # type: ignore[operator]


def test_letters_of_each_kind_have_their_options() -> None:
    """Retry letters and dead letters may differ."""
    retry, dead = pr.ProducerOptions("lz4"), pr.ProducerOptions("zstd")
    options = LetterProducerOptions(retry, dead)
    assert (retry, dead) == (options.of(dead=False), options.of(dead=True))


def test_a_policy_with_options_is_hashable() -> None:
    """As all policies are; options with other properties are not equal."""
    one, same, other = (
        pr.DeadLetterPolicy(retry_producer=pr.ProducerOptions(properties={"team": each}))
        for each in "aab"
    )
    assert [1, None] == [{one: 1}.get(same), {one: 1}.get(other)]
