"""How letters are published: the options of their producers."""

from __future__ import annotations

import re
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.handoff.producers import arguments_of
from pulsar_retry.policy.dead_letter import LetterProducerOptions


@pytest.mark.parametrize("name", pulsar.CompressionType.__members__)
def test_compression_is_named(name: str) -> None:
    """As pulsar-client names it, in lower case."""
    options = pr.ProducerOptions(name.lower())  # type: ignore[arg-type]
    found = arguments_of(options).get("compression_type", pulsar.CompressionType.NONE)
    assert pulsar.CompressionType.__members__[name] == found


def test_everything_reaches_pulsar_client() -> None:
    """With the names of its own arguments."""
    reader = object()
    options = pr.ProducerOptions(
        "lz4",
        chunking_enabled=False,
        encryption_key="orders",
        crypto_key_reader=reader,
    )
    assert {
        "compression_type": pulsar.CompressionType.LZ4,
        "chunking_enabled": False,
        "batching_enabled": False,
        "encryption_key": "orders",
        "crypto_key_reader": reader,
    } == arguments_of(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"compression_type": "zst"},
            'compression_type=\'zst\': expected "none", "lz4", "zlib", "zstd" or "snappy"',
        ),
        (
            {"compression_type": 3},
            'compression_type=3: expected "none", "lz4", "zlib", "zstd" or "snappy"',
        ),
        ({"chunking_enabled": "no"}, "chunking_enabled='no': expected a bool"),
        ({"encryption_key": " "}, "encryption_key=' ': expected the name of a key, or None"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    """The error names the option, its value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(message)}$"):
        pr.ProducerOptions(**options)


@pytest.mark.parametrize("name", ["retry_producer", "dead_letter_producer"])
def test_a_policy_takes_only_these_options(name: str) -> None:
    """A dict is refused."""
    with pytest.raises(pr.ConfigError, match=rf"{name}={{}}: expected a pulsar_retry\.Produc"):
        pr.DeadLetterPolicy(**{name: {}})  # type: ignore[arg-type]


def test_letters_of_each_kind_have_their_options() -> None:
    """Retry letters and dead letters may differ."""
    retry, dead = pr.ProducerOptions("lz4"), pr.ProducerOptions("zstd")
    options = LetterProducerOptions(retry, dead)
    assert (retry, dead) == (options.of(dead=False), options.of(dead=True))
