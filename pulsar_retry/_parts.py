"""The public names of the package. Each is imported at its first use.

So ``import pulsar_retry`` is fast, and a program loads only the parts that it uses. For type
checkers and readers, `pulsar_retry` has the same names under ``TYPE_CHECKING``. A test compares
both lists.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_MODULES = frozenset(
    {
        "admin",
        "asyncio",
        "client",
        "consumer",
        "errors",
        "observe",
        "policy",
        "pull",
        "push",
        "replay",
        "wire",
    }
)

#: The public names, by the modules that define them.
NAMES: dict[str, tuple[str, ...]] = {
    "client": ("Client",),
    "consumer.consumer": ("Consumer",),
    "errors": (
        "AcknowledgeError",
        "AdminConflictError",
        "AdminError",
        "AdminForbiddenError",
        "AdminNotFoundError",
        "AlreadySettledError",
        "BatchSettleError",
        "ConfigError",
        "ConsumerClosedError",
        "EventLoopError",
        "ForkedError",
        "HandlerError",
        "LeaseExpired",
        "LetterPublishError",
        "PulsarRetryError",
        "RedriveError",
        "RetentionError",
        "SeekError",
        "SettleError",
        "SnapshotError",
        "StandaloneError",
        "UnfinishedError",
        "UnreachableError",
        "WorkerCrashedError",
        "WorkersLostError",
    ),
    "observe.hooks": (
        "Hooks",
        "SettleEvent",
    ),
    "observe.serving": (
        "MetricsServer",
        "register_metrics",
        "start_metrics_server",
    ),
    "observe.tracing": ("process_span",),
    "policy.backoff": (
        "Backoff",
        "Exponential",
        "Fixed",
        "Immediate",
        "Levels",
        "Linear",
    ),
    "policy.dead_letter": ("DeadLetterPolicy",),
    "policy.decide": ("decide",),
    "policy.explain": (
        "Schedule",
        "Step",
        "explain",
    ),
    "policy.jitter": ("Jitter",),
    "policy.levels": (
        "DEFAULT_DELAY_LEVELS",
        "DelayLevels",
    ),
    "policy.outcomes": (
        "Defer",
        "Drop",
        "Failure",
        "Outcome",
        "Reject",
        "Retry",
    ),
    "policy.retry": ("RetryPolicy",),
    "policy.settings": ("Setting",),
    "pull.rules.breaker": ("Breaker",),
    "pull.delivery": ("Delivery",),
    "pull.rules.flow": ("FlowControl",),
    "pull.health": ("Health",),
    "pull.rules.lanes": ("Lanes",),
    "pull.rules.lease": ("Lease",),
    "pull.rules.quarantine": (
        "ClaimStore",
        "FileClaims",
        "Quarantine",
    ),
    "pull.report": ("Report",),
    "pull.subscriber": ("Subscriber",),
    "wire.codecs": ("Codec",),
    "wire.dead_letter": ("DeadLetter",),
    "wire.envelope": (
        "Attempt",
        "Envelope",
    ),
    "wire.names": ("Naming",),
    "wire.properties": (
        "RetryProperties",
        "attempt_of",
        "delivery_attempt",
    ),
}

_ORIGINS = {name: module for module, names in NAMES.items() for name in names}


def part(name: str) -> Any:
    """Return `pulsar_retry.<name>`. This is the package's ``__getattr__``."""
    if name in _MODULES:
        return importlib.import_module(f"pulsar_retry.{name}")
    if name not in _ORIGINS:
        raise AttributeError(f"module 'pulsar_retry' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(f"pulsar_retry.{_ORIGINS[name]}"), name)
    setattr(sys.modules["pulsar_retry"], name, value)  # later uses do not call this function
    return value


def listed() -> list[str]:
    """Return the names in the package. This is its ``__dir__``."""
    return sorted({*vars(sys.modules["pulsar_retry"]), *_ORIGINS, *_MODULES})
