"""Retry letters, dead letters and delay levels for Apache Pulsar consumers."""

import typing

from pulsar_retry import _lazy
from pulsar_retry._version import __version__

if typing.TYPE_CHECKING:
    from pulsar_retry import admin as admin
    from pulsar_retry import asyncio as asyncio
    from pulsar_retry import errors as errors
    from pulsar_retry import observe as observe
    from pulsar_retry import policy as policy
    from pulsar_retry import pull as pull
    from pulsar_retry import push as push
    from pulsar_retry import replay as replay
    from pulsar_retry import wire as wire
    from pulsar_retry.client import Client
    from pulsar_retry.consumer.consumer import Consumer
    from pulsar_retry.errors import (
        AcknowledgeError,
        AdminConflictError,
        AdminError,
        AdminForbiddenError,
        AdminNotFoundError,
        AlreadySettledError,
        AuditError,
        BatchSettleError,
        ConfigError,
        ConsumerClosedError,
        EventLoopError,
        ForkedError,
        HandlerError,
        LeaseExpired,
        LetterPublishError,
        PayloadError,
        PulsarRetryError,
        RedriveError,
        RetentionError,
        SeekError,
        SettleError,
        SnapshotError,
        StandaloneError,
        TopicMissingError,
        UnfinishedError,
        UnreachableError,
        WorkerCrashedError,
        WorkersLostError,
    )
    from pulsar_retry.observe.hooks import Hooks, SettleEvent
    from pulsar_retry.observe.serving import (
        MetricsServer,
        register_metrics,
        start_metrics_server,
    )
    from pulsar_retry.observe.tracing import process_span
    from pulsar_retry.policy.backoff import Backoff, Exponential, Fixed, Immediate, Levels, Linear
    from pulsar_retry.policy.dead_letter import DeadLetterPolicy
    from pulsar_retry.policy.decide import decide
    from pulsar_retry.policy.explain import Schedule, Step, explain
    from pulsar_retry.policy.jitter import Jitter
    from pulsar_retry.policy.letter_producers import ProducerOptions
    from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
    from pulsar_retry.policy.outcomes import Defer, Drop, Failure, Outcome, Reject, Retry
    from pulsar_retry.policy.retry import RetryPolicy
    from pulsar_retry.pull.delivery import Delivery
    from pulsar_retry.pull.health import Health
    from pulsar_retry.pull.report import Report
    from pulsar_retry.pull.rules.breaker import Breaker
    from pulsar_retry.pull.rules.flow import FlowControl
    from pulsar_retry.pull.rules.lanes import Lanes
    from pulsar_retry.pull.rules.lease import Lease
    from pulsar_retry.pull.subscriber import Subscriber
    from pulsar_retry.wire.dead_letter import DeadLetter
    from pulsar_retry.wire.envelope import Attempt, Envelope
    from pulsar_retry.wire.names import Naming
    from pulsar_retry.wire.properties import RetryProperties, attempt_of, delivery_attempt
else:
    # A name is imported at its first use, so that a program which needs one part does not load all.
    # `__all__` has every public name; `dir()` only what most programs need, and the subpackages.
    __getattr__ = _lazy.package_getattr
    __dir__ = _lazy.package_dir

__all__ = [
    "DEFAULT_DELAY_LEVELS",
    "AcknowledgeError",
    "AdminConflictError",
    "AdminError",
    "AdminForbiddenError",
    "AdminNotFoundError",
    "AlreadySettledError",
    "Attempt",
    "AuditError",
    "Backoff",
    "BatchSettleError",
    "Breaker",
    "Client",
    "ConfigError",
    "Consumer",
    "ConsumerClosedError",
    "DeadLetter",
    "DeadLetterPolicy",
    "Defer",
    "DelayLevels",
    "Delivery",
    "Drop",
    "Envelope",
    "EventLoopError",
    "Exponential",
    "Failure",
    "Fixed",
    "FlowControl",
    "ForkedError",
    "HandlerError",
    "Health",
    "Hooks",
    "Immediate",
    "Jitter",
    "Lanes",
    "Lease",
    "LeaseExpired",
    "LetterPublishError",
    "Levels",
    "Linear",
    "MetricsServer",
    "Naming",
    "Outcome",
    "PayloadError",
    "ProducerOptions",
    "PulsarRetryError",
    "RedriveError",
    "Reject",
    "Report",
    "RetentionError",
    "Retry",
    "RetryPolicy",
    "RetryProperties",
    "Schedule",
    "SeekError",
    "SettleError",
    "SettleEvent",
    "SnapshotError",
    "StandaloneError",
    "Step",
    "Subscriber",
    "TopicMissingError",
    "UnfinishedError",
    "UnreachableError",
    "WorkerCrashedError",
    "WorkersLostError",
    "__version__",
    "attempt_of",
    "decide",
    "delivery_attempt",
    "explain",
    "process_span",
    "register_metrics",
    "start_metrics_server",
]
