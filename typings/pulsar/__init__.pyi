# Types of pulsar-client 3.13, which ships none: see docs/decisions.md.

import logging
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

import _pulsar
from _pulsar import (
    BatchingType as BatchingType,
    CompressionType as CompressionType,
    ConsumerCryptoFailureAction as ConsumerCryptoFailureAction,
    ConsumerType as ConsumerType,
    InitialPosition as InitialPosition,
    KeySharedMode as KeySharedMode,
    LoggerLevel as LoggerLevel,
    PartitionsRoutingMode as PartitionsRoutingMode,
    ProducerAccessMode as ProducerAccessMode,
    RegexSubscriptionMode as RegexSubscriptionMode,
    Result as Result,
)

from . import schema as schema
from .__about__ import __version__ as __version__
from .exceptions import *
from .functions.context import Context as Context
from .functions.function import Function as Function
from .functions.serde import (
    IdentitySerDe as IdentitySerDe,
    PickleSerDe as PickleSerDe,
    SerDe as SerDe,
)
from .schema.schema import BytesSchema as BytesSchema, Schema as _Schema
from .tableview import TableView as TableView

# What methods that take a message or an id accept.
_Received: TypeAlias = Message | MessageId | _pulsar.Message | _pulsar.MessageId

class MessageId:
    _msg_id: _pulsar.MessageId
    earliest: ClassVar[_pulsar.MessageId]
    latest: ClassVar[_pulsar.MessageId]
    def __init__(
        self, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1
    ) -> None: ...
    def ledger_id(self) -> int: ...
    def entry_id(self) -> int: ...
    def batch_index(self) -> int: ...
    def partition(self) -> int: ...
    def serialize(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __ne__(self, other: object) -> bool: ...
    def __le__(self, other: MessageId) -> bool: ...
    def __lt__(self, other: MessageId) -> bool: ...
    def __ge__(self, other: MessageId) -> bool: ...
    def __gt__(self, other: MessageId) -> bool: ...
    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> _pulsar.MessageId: ...
    @classmethod
    def wrap(cls, msg_id: _pulsar.MessageId) -> MessageId: ...

class EncryptionKey:
    def __init__(self, key: Any) -> None: ...
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> bytes: ...
    @property
    def metadata(self) -> dict[str, str]: ...

class EncryptionContext:
    def __init__(self, context: Any) -> None: ...
    def keys(self) -> list[EncryptionKey]: ...
    def param(self) -> bytes: ...
    def algorithm(self) -> str: ...
    def compression_type(self) -> CompressionType: ...
    def uncompressed_message_size(self) -> int: ...
    def batch_size(self) -> int: ...
    def is_decryption_failed(self) -> bool: ...

class Message:
    _message: _pulsar.Message
    _schema: _Schema
    def data(self) -> bytes: ...
    def value(self) -> Any: ...
    def properties(self) -> dict[str, str]: ...
    def partition_key(self) -> str: ...
    def ordering_key(self) -> str: ...
    def publish_timestamp(self) -> int: ...
    def event_timestamp(self) -> int: ...
    def message_id(self) -> _pulsar.MessageId: ...
    def topic_name(self) -> str: ...
    def redelivery_count(self) -> int: ...
    def schema_version(self) -> str: ...
    def producer_name(self) -> str: ...
    def has_null_value(self) -> bool: ...
    def encryption_context(self) -> EncryptionContext | None: ...

class MessageBatch:
    def __init__(self) -> None: ...
    def with_message_id(self, msg_id: MessageId | _pulsar.MessageId) -> MessageBatch: ...
    def parse_from(self, data: bytes, size: int) -> list[Message]: ...

class Authentication:
    auth: Any
    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None: ...

class AuthenticationTLS(Authentication):
    def __init__(self, certificate_path: str, private_key_path: str) -> None: ...

class AuthenticationToken(Authentication):
    def __init__(self, token: str | Callable[[], str]) -> None: ...

class AuthenticationAthenz(Authentication):
    def __init__(self, auth_params_string: str) -> None: ...

class AuthenticationOauth2(Authentication):
    def __init__(self, auth_params_string: str) -> None: ...

class AuthenticationBasic(Authentication):
    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None: ...

class ServiceInfoProvider:
    def initial_service_info(self) -> ServiceInfo: ...
    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None: ...
    def close(self) -> None: ...

class ServiceInfo:
    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
    ) -> None: ...
    @property
    def service_url(self) -> str: ...
    @property
    def use_tls(self) -> bool: ...
    @property
    def tls_trust_certs_file_path(self) -> str | None: ...
    @classmethod
    def wrap(cls, service_info: Any) -> ServiceInfo: ...

class AutoClusterFailover:
    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None: ...

class ConsumerDeadLetterPolicy:
    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
    ) -> None: ...
    @property
    def dead_letter_topic(self) -> str: ...
    @property
    def max_redeliver_count(self) -> int: ...
    @property
    def initial_subscription_name(self) -> str: ...
    def policy(self) -> Any: ...

class CryptoKeyReader:
    cryptoKeyReader: Any
    def __init__(self, public_key_path: str, private_key_path: str) -> None: ...

class Client:
    _client: Any
    _consumers: list[Any]
    def __init__(
        self,
        service_url: str | AutoClusterFailover | ServiceInfoProvider,
        authentication: Authentication | None = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: logging.Logger | ConsoleLogger | FileLogger | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
    ) -> None: ...
    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: _Schema = ...,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = ...,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 131072,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = ...,
        lazy_start_partitioned_producers: bool = False,
        properties: Mapping[str, str] | None = None,
        batching_type: BatchingType = ...,
        encryption_key: str | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ...,
        message_router: Callable[[Message, int], int] | None = None,
    ) -> Producer: ...
    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ...,
        schema: _Schema = ...,
        message_listener: Callable[[Consumer, Message], object] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
        initial_position: InitialPosition = ...,
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = ...,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ...,
    ) -> Consumer: ...
    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId | _pulsar.MessageId,
        schema: _Schema = ...,
        reader_listener: Callable[[Reader, Message], object] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ...,
    ) -> Reader: ...
    def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: _Schema = ...
    ) -> TableView: ...
    def get_topic_partitions(self, topic: str) -> list[str]: ...
    def get_service_info(self) -> ServiceInfo: ...
    def shutdown(self) -> None: ...
    def close(self) -> None: ...

class Producer:
    _client: Any
    _producer: _pulsar.Producer
    _schema: _Schema
    def topic(self) -> str: ...
    def producer_name(self) -> str: ...
    def last_sequence_id(self) -> int: ...
    def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> _pulsar.MessageId: ...
    def send_async(
        self,
        content: Any,
        callback: Callable[[Result, _pulsar.MessageId], object] | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def is_connected(self) -> bool: ...
    def _build_msg(
        self,
        content: Any,
        properties: Mapping[str, str] | None,
        partition_key: str | None,
        ordering_key: str | None,
        sequence_id: int | None,
        replication_clusters: list[str] | None,
        disable_replication: bool | None,
        event_timestamp: int | None,
        deliver_at: int | None,
        deliver_after: timedelta | None,
    ) -> _pulsar.Message: ...

class Consumer:
    _client: Any
    _consumer: Any
    _schema: Any
    def topic(self) -> str: ...
    def subscription_name(self) -> str: ...
    def consumer_name(self) -> str: ...
    def unsubscribe(self) -> None: ...
    def receive(self, timeout_millis: int | None = None) -> Message: ...
    def batch_receive(self) -> list[Message]: ...
    def acknowledge(self, message: _Received) -> None: ...
    def acknowledge_cumulative(self, message: _Received) -> None: ...
    def negative_acknowledge(self, message: _Received) -> None: ...
    def pause_message_listener(self) -> None: ...
    def resume_message_listener(self) -> None: ...
    def redeliver_unacknowledged_messages(self) -> None: ...
    def seek(self, messageid: MessageId | _pulsar.MessageId | int) -> None: ...
    def close(self) -> None: ...
    def is_connected(self) -> bool: ...
    def get_last_message_id(self) -> _pulsar.MessageId: ...

class ConsumerBatchReceivePolicy:
    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None: ...
    def policy(self) -> Any: ...

class ConsumerKeySharedPolicy:
    def __init__(
        self,
        key_shared_mode: KeySharedMode = ...,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None: ...
    @property
    def key_shared_mode(self) -> KeySharedMode: ...
    @property
    def allow_out_of_order_delivery(self) -> bool: ...
    @property
    def sticky_ranges(self) -> list[tuple[int, int]]: ...
    def policy(self) -> Any: ...

class Reader:
    _client: Any
    _reader: _pulsar.Reader
    _schema: _Schema
    def topic(self) -> str: ...
    def read_next(self, timeout_millis: int | None = None) -> Message: ...
    def has_message_available(self) -> bool: ...
    def seek(self, messageid: MessageId | _pulsar.MessageId | int) -> None: ...
    def close(self) -> None: ...
    def is_connected(self) -> bool: ...

class ConsoleLogger:
    log_level: LoggerLevel
    def __init__(self, log_level: LoggerLevel = ...) -> None: ...

class FileLogger:
    log_level: LoggerLevel
    log_file: str
    def __init__(self, log_level: LoggerLevel, log_file: str) -> None: ...
