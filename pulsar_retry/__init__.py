"""Retry letters, dead letters and delay levels for Apache Pulsar consumers."""

from pulsar_retry._version import __version__
from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.errors import (
    AcknowledgeError,
    BatchSettleError,
    ConfigError,
    ConsumerClosedError,
    ForkedError,
    LetterPublishError,
    PulsarRetryError,
    SettleError,
    StandaloneError,
)
from pulsar_retry.policy.backoff import Backoff, Exponential, Fixed, Immediate, Levels, Linear
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.decide import decide
from pulsar_retry.policy.explain import Schedule, Step, explain
from pulsar_retry.policy.jitter import Jitter
from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from pulsar_retry.policy.outcomes import Defer, Drop, Failure, Outcome, Reject, Retry
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.policy.settings import Setting
from pulsar_retry.wire.codecs import Codec
from pulsar_retry.wire.dead_letter import DeadLetter
from pulsar_retry.wire.envelope import Attempt, Envelope
from pulsar_retry.wire.names import Naming
from pulsar_retry.wire.properties import RetryProperties, attempt_of, delivery_attempt

__all__ = [
    "DEFAULT_DELAY_LEVELS",
    "AcknowledgeError",
    "Attempt",
    "Backoff",
    "BatchSettleError",
    "Client",
    "Codec",
    "ConfigError",
    "Consumer",
    "ConsumerClosedError",
    "DeadLetter",
    "DeadLetterPolicy",
    "Defer",
    "DelayLevels",
    "Drop",
    "Envelope",
    "Exponential",
    "Failure",
    "Fixed",
    "ForkedError",
    "Immediate",
    "Jitter",
    "LetterPublishError",
    "Levels",
    "Linear",
    "Naming",
    "Outcome",
    "PulsarRetryError",
    "Reject",
    "Retry",
    "RetryPolicy",
    "RetryProperties",
    "Schedule",
    "Setting",
    "SettleError",
    "StandaloneError",
    "Step",
    "__version__",
    "attempt_of",
    "decide",
    "delivery_attempt",
    "explain",
]
