"""Effectively once: the options that a `sink.id` was first used with, kept on the broker.

The manifest is the first message of a topic beside the dead-letter topic. A durable subscription
that never acknowledges keeps it. Each use of the `sink.id` writes the manifest again with the same
number. If the namespace deduplicates, the broker does not store it again; so this shows whether it
does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import attrs
import pulsar
from _pulsar import MessageBuilder

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import TopicName
from pulsar_retry_spark.clients import CachedClient, lease
from pulsar_retry_spark.options import Claim, SinkOptions, SinkTargets
from pulsar_retry_spark.receipts import refused

#: Increased when this package changes how it ends batches or numbers rows.
LAYOUT = 1

#: The subscription that keeps a topic's messages, and never acknowledges them.
KEEPER = "pulsar-failures"

#: Milliseconds to wait for the broker.
TIMEOUT_MS = 30_000


def claimed(options: SinkOptions, batch: int | None, rows: str | None) -> SinkOptions:
    """Return *options* for tasks that write effectively once. On the driver, before they start.

    Args:
        options: With `delivery=effectively-once`.
        batch: The number of the micro-batch; None if the job is not a stream.
        rows: A fingerprint of the rows of a batch job; None for a stream, whose micro-batches are
            numbered.

    Raises:
        ConfigError: the `sink.id` was used with other options, topics or rows before, the namespace
            does not deduplicate, or the topics are not in one namespace. Nothing was sent.
        PulsarFailuresError: the broker can't be asked.
    """
    settled, topics = _settled(options, rows)
    assert settled.effectively_once is not None  # noqa: S101 - the caller has looked
    once = attrs.evolve(settled.effectively_once, claim=Claim(topics, batch))
    return attrs.evolve(settled, effectively_once=once)


@lru_cache(64)  # once in a process, not once in a micro-batch
def _settled(
    options: SinkOptions, rows: str | None
) -> tuple[SinkOptions, frozenset[tuple[str, int]]]:
    """Return *options* with the final topics, and the number of partitions of each topic.

    Both are compared with the manifest first.
    """
    topic = sibling_topic(options, "pulsar-failures-manifest")
    try:
        with lease(options.connection) as client:
            targets = _targets(client, options.targets)
            names = [name for name in (targets.retry, targets.dead_letter) if name is not None]
            counts = {name: len(client.partitions(name)) for name in names}
            settled = attrs.evolve(options, targets=targets)
            _claim(client, topic, manifest(settled, counts, rows))
    except pulsar.PulsarException as error:
        raise refused(type(error).__name__, f"the manifest {topic}") from None
    return settled, frozenset(counts.items())


def _targets(client: CachedClient, targets: SinkTargets) -> SinkTargets:
    if targets.plan is None:
        return targets
    letters = client.letter_topics(targets.plan)
    return attrs.evolve(targets, retry=letters.retry, dead_letter=letters.dead_letter)


def sibling_topic(options: SinkOptions, name: str) -> str:
    """Return a topic of the `sink.id`, in the namespace of all its topics.

    Raises:
        ConfigError: the topics are in several namespaces, or are not persistent.
    """
    assert options.effectively_once is not None  # noqa: S101 - the caller has looked
    targets = options.targets
    names = [TopicName.parse(each) for each in (targets.dead_letter, targets.retry) if each]
    if not names or len({(each.domain, each.tenant, each.namespace) for each in names}) > 1:
        raise ConfigError.bad(
            "retry.topic", targets.retry, "a topic in the dead-letter topic's namespace"
        )
    if names[0].domain != "persistent":
        raise ConfigError.bad("dead_letter.topic", targets.dead_letter, "a persistent topic")
    return names[0].sibling(f"{options.effectively_once.sink_id}-{name}")


def manifest(
    options: SinkOptions, partitions: Mapping[str, int], rows: str | None
) -> dict[str, Any]:
    """Return everything that decides about the number of each row and about its batch.

    *partitions* are the numbers of partitions of the topics. A key that is the name of an option
    has that option's value.
    """
    once, batching, targets = options.effectively_once, options.batching, options.targets
    assert once is not None  # noqa: S101 - the caller has looked
    return {
        "layout": LAYOUT,
        "sink.partitions": once.partitions,
        "retry.topic": targets.retry,
        "dead_letter.topic": targets.dead_letter,
        "partitions": partitions,
        "topic": targets.topic,
        "subscription": targets.subscription,
        "max_attempts": options.max_attempts,
        "max_redrives": options.max_redrives,
        "delay": repr(options.delays),
        "batch.messages": batching.messages,
        "batch.bytes": batching.size,
        "max_message_bytes": options.max_message_bytes,
        "oversize": options.oversize,
        "extra": options.extra,
        "value.schema": None if options.schema is None else options.schema.digest,
        "rows": rows,
    }


def fingerprint(rows: int, xor: int, total: int) -> str:
    """Return a fingerprint of rows: of their number, and of the XOR and the sum of their hashes.

    The XOR alone does not show that two equal rows are two others now. It is what release 0.2.0
    kept, so it comes first.
    """
    return f"{rows} rows, {xor % (1 << 64):016x}-{total % (1 << 64):016x}"


def same_rows(now: str | None, before: str | None) -> bool:
    """Return whether both are of the same rows; *before* may be one of release 0.2.0."""
    return before in {now, now and now.partition("-")[0]}


def _claim(client: CachedClient, topic: str, mine: dict[str, Any]) -> None:
    """Write the manifest if there is none yet; else refuse one that differs from it."""
    topic = client.partitions(topic)[0]  # where the cluster makes new topics partitioned
    client.client.subscribe(
        topic,
        KEEPER,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    ).close()
    # The first write may be new. If the second is stored as well, the broker does not deduplicate.
    if _is_stored(client, topic, mine) and _is_stored(client, topic, mine):
        name = TopicName.parse(topic)
        raise ConfigError.bad(
            "delivery",
            "effectively-once",
            "a namespace with deduplication: pulsar-admin namespaces set-deduplication --enable "
            f"{name.tenant}/{name.namespace}",
        )
    first = _first(client, topic)
    changed = [
        f"{key}={mine.get(key)!r} was {first.get(key)!r}"
        for key in mine | first
        if mine.get(key) != first.get(key)
        and not (key == "rows" and same_rows(mine.get(key), first.get(key)))
    ]
    if changed:
        raise ConfigError(
            f"{'; '.join(changed)} when this sink.id was first used: expected the same, or another "
            "sink.id"
        )


def _is_stored(client: CachedClient, topic: str, content: dict[str, Any]) -> bool:
    """Write the manifest; return True if the broker has stored it, False for a duplicate."""
    raw = client.producer(topic, producer_name="manifest", send_timeout_millis=TIMEOUT_MS)
    try:
        message = MessageBuilder().content(json.dumps(content).encode()).sequence_id(1).build()
        return bool(raw.send(message).ledger_id() >= 0)
    finally:
        raw.close()


def _first(client: CachedClient, topic: str) -> dict[str, Any]:
    """Return the manifest that was written first."""
    reader = client.client.create_reader(topic, pulsar.MessageId.earliest)
    try:
        first: dict[str, Any] = json.loads(reader.read_next(TIMEOUT_MS).data())
        return first
    finally:
        reader.close()
