"""How the producers of letters are set up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, cast, get_args

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import flag, not_blank

#: The types of compression, as pulsar-client names them, in lower case.
Compression = Literal["none", "lz4", "zlib", "zstd", "snappy"]

#: The arguments of `pulsar.Client.create_producer` that the hand-off of letters sets itself.
_OWN = frozenset(
    {
        "access_mode",
        "batching_enabled",
        "batching_max_allowed_size_in_bytes",
        "batching_max_messages",
        "batching_max_publish_delay_ms",
        "batching_type",
        "block_if_queue_full",
        "initial_sequence_id",
        "max_pending_messages",
        "max_pending_messages_across_partitions",
        "producer_name",
        "schema",
        "send_timeout_millis",
        "topic",
    }
)


class CompressionMember(Protocol):
    """A member of `pulsar.CompressionType`."""

    @property
    def name(self) -> str:
        """The name of the member."""


#: What the options accept.
CompressionLike = Compression | CompressionMember


def _compression(value: CompressionLike) -> Compression:
    """Return the name of a type of compression; its member of `pulsar.CompressionType` has it.

    Raises:
        ConfigError: there is no such type.
    """
    member = getattr(value, "name", None)
    name = member.lower() if isinstance(member, str) else value
    for each in get_args(Compression):
        if name == each:
            return cast("Compression", each)
    accepted = ", ".join(f'"{each}"' for each in get_args(Compression))
    raise ConfigError.bad("compression_type", value, accepted)


def _properties(value: Mapping[str, str]) -> dict[str, str]:
    accepted = "a mapping of names to values, both str"
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) for pair in value.items() for each in pair
    ):
        raise ConfigError.bad("properties", value, accepted)
    return dict(value)


@attrs.frozen
class ProducerOptions:
    """How letters of one kind are published: retry letters, or dead letters.

    Pass it to `DeadLetterPolicy` as ``retry_producer`` or ``dead_letter_producer``. The Java client
    has the same in its policy (PIP-409), and the Go client as ``ProducerOptions``.

    Attributes:
        compression_type: ``"none"``, ``"lz4"``, ``"zlib"``, ``"zstd"`` or ``"snappy"``; a member of
            `pulsar.CompressionType` is accepted too.
        chunking_enabled: Split letters that are larger than the broker's ``maxMessageSize``. With
            False, such a letter fails with `LetterPublishError`, and its message is redelivered.
        properties: Names and values that describe the producer. The broker shows them.
        encryption_key: The name of the key that encrypts these letters. None: the
            ``letter_encryption_key`` of `subscribe`.
        crypto_key_reader: The `pulsar.CryptoKeyReader` that supplies the public key. None: the one
            of `subscribe`.
        arguments: A function that is called with the topic's full name each time a producer is
            opened. It returns further arguments of `pulsar.Client.create_producer`, such as
            ``{"message_routing_mode": …}``, which replace those above. It may run on any thread and
            must not block. Arguments that letters rely on, such as the schema, the name and
            time-outs, are refused. If it raises, or returns something else, the letter fails with
            `LetterPublishError`, and its message is redelivered.

    Raises:
        ConfigError: a value is invalid.
    """

    compression_type: Compression = attrs.field(default="none", converter=_compression)
    chunking_enabled: bool = True
    properties: Mapping[str, str] = attrs.field(factory=dict, converter=_properties, hash=False)
    encryption_key: str | None = None
    crypto_key_reader: Any = None
    arguments: Callable[[str], Mapping[str, Any]] | None = None

    def __attrs_post_init__(self) -> None:
        """Check the other values."""
        flag("chunking_enabled", self.chunking_enabled)
        if self.encryption_key is not None:
            not_blank("encryption_key", self.encryption_key, "the name of a key, or None")
        if self.arguments is not None and not callable(self.arguments):
            raise ConfigError.bad("arguments", self.arguments, "a function of the topic, or None")

    def further(self, topic: str) -> dict[str, Any]:
        """Return what *arguments* adds for the producer of *topic*.

        Raises:
            ConfigError: it returned no mapping, or an argument that the hand-off sets itself.
        """
        if self.arguments is None:
            return {}
        added = self.arguments(topic)
        if not isinstance(added, Mapping):
            raise ConfigError.bad("arguments", added, "a function that returns a mapping")
        if refused := sorted(_OWN.intersection(added)):
            raise ConfigError.bad(
                "arguments", ", ".join(refused), "only arguments that letters do not rely on"
            )
        return dict(added)


#: As letters are published if nothing else is said.
USUAL = ProducerOptions()


@attrs.frozen
class LetterProducerOptions:
    """How the letters of a subscription are published, by their kind."""

    retry: ProducerOptions = USUAL
    dead: ProducerOptions = USUAL

    def of(self, *, dead: bool) -> ProducerOptions:
        """Return the options of dead letters, or of retry letters."""
        return self.dead if dead else self.retry


def checked_options(argument: str, value: Any) -> ProducerOptions:
    """Return *value*.

    Raises:
        ConfigError: it is not a `ProducerOptions`.
    """
    if not isinstance(value, ProducerOptions):
        raise ConfigError.bad(argument, value, "a pulsar_retry.ProducerOptions")
    return value
