from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import _pulsar
import pulsar
from pulsar.schema.schema import Schema

_Received: TypeAlias = pulsar.Message | pulsar.MessageId | _pulsar.Message | _pulsar.MessageId

class PulsarException(Exception):
    def __init__(self, result: pulsar.Result, msg: str | None = None) -> None: ...
    def error(self) -> pulsar.Result: ...

class Producer:
    _producer: _pulsar.Producer
    _schema: Schema
    def __init__(self, producer: _pulsar.Producer, schema: Schema) -> None: ...
    async def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> pulsar.MessageId: ...
    async def flush(self) -> None: ...
    async def close(self) -> None: ...
    def topic(self) -> str: ...
    def producer_name(self) -> str: ...
    def last_sequence_id(self) -> int: ...
    def is_connected(self) -> bool: ...

class Consumer:
    _consumer: Any
    _schema: Any
    def __init__(self, consumer: _pulsar.Consumer, schema: Schema) -> None: ...
    async def receive(self) -> pulsar.Message: ...
    async def acknowledge(self, message: _Received) -> None: ...
    async def acknowledge_cumulative(self, message: _Received) -> None: ...
    async def negative_acknowledge(self, message: _Received) -> None: ...
    async def unsubscribe(self) -> None: ...
    async def seek(self, messageid: pulsar.MessageId | _pulsar.MessageId | int) -> None: ...
    async def close(self) -> None: ...
    async def get_last_message_id(self) -> _pulsar.MessageId: ...
    def redeliver_unacknowledged_messages(self) -> None: ...
    def topic(self) -> str: ...
    def subscription_name(self) -> str: ...
    def consumer_name(self) -> str: ...

class Reader:
    _reader: _pulsar.Reader
    _schema: Schema
    def __init__(self, reader: _pulsar.Reader, schema: Schema) -> None: ...
    async def read_next(self) -> pulsar.Message: ...
    async def has_message_available(self) -> bool: ...
    async def seek(self, messageid: pulsar.MessageId | _pulsar.MessageId | int) -> None: ...
    async def close(self) -> None: ...
    def topic(self) -> str: ...
    def is_connected(self) -> bool: ...

class Client:
    _client: Any
    def __init__(self, service_url: str, **kwargs: Any) -> None: ...
    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: pulsar.CompressionType = ...,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 131072,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: pulsar.PartitionsRoutingMode = ...,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: pulsar.BatchingType = ...,
        encryption_key: str | None = None,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
        access_mode: pulsar.ProducerAccessMode = ...,
        message_router: Callable[[pulsar.Message, int], int] | None = None,
    ) -> Producer: ...
    async def subscribe(
        self,
        topic: str | list[str],
        subscription_name: str,
        consumer_type: pulsar.ConsumerType = ...,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: pulsar.InitialPosition = ...,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: pulsar.ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: pulsar.ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: pulsar.RegexSubscriptionMode = ...,
        dead_letter_policy: pulsar.ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: pulsar.ConsumerCryptoFailureAction = ...,
        is_pattern_topic: bool = False,
    ) -> Consumer: ...
    async def create_reader(
        self,
        topic: str,
        start_message_id: pulsar.MessageId | _pulsar.MessageId,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: pulsar.ConsumerCryptoFailureAction = ...,
    ) -> Reader: ...
    def shutdown(self) -> None: ...
    async def get_topic_partitions(self, topic: str) -> list[str]: ...
    async def close(self) -> None: ...
