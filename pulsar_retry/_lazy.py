"""The public names of the package. Each is imported at its first use.

So ``import pulsar_retry`` is fast, and a program loads only the modules that it uses. For type
checkers and readers, `pulsar_retry` has the same names under ``TYPE_CHECKING``. A test compares
both lists.

All names can be imported from `pulsar_retry`. So that users find the ones they need, ``dir()``
lists only `ESSENTIAL` and `SUBPACKAGES`. A subpackage (`pulsar_retry.policy`, `pulsar_retry.pull`)
lists its own names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

#: What most programs need.
ESSENTIAL = (
    *("Client", "Consumer", "DeadLetterPolicy", "Defer", "Drop", "Exponential"),
    *("PulsarRetryError", "Reject", "Retry", "RetryPolicy", "Subscriber", "attempt_of"),
)

#: The subpackages, and the module, that have public names.
SUBPACKAGES = ("admin", "asyncio", "errors", "observe", "policy", "pull", "push", "replay", "wire")

_MODULES = frozenset({*SUBPACKAGES, "client", "consumer"})

#: The public names, by the modules that define them.
NAMES: dict[str, tuple[str, ...]] = {
    module: tuple(names.split())
    for module, names in {
        "client": "Client",
        "consumer.consumer": "Consumer",
        "errors": """
            AcknowledgeError AdminConflictError AdminError AdminForbiddenError AdminNotFoundError
            AlreadySettledError AuditError BatchSettleError ConfigError ConsumerClosedError
            EventLoopError ForkedError HandlerError LeaseExpired LetterPublishError PayloadError
            PulsarRetryError RedriveError RetentionError SeekError SettleError SnapshotError
            StandaloneError TopicMissingError UnfinishedError UnreachableError WorkerCrashedError
            WorkersLostError
        """,
        "observe.hooks": "Hooks SettleEvent",
        "observe.serving": "MetricsServer register_metrics start_metrics_server",
        "observe.tracing": "process_span",
        "policy.backoff": "Backoff Exponential Fixed Immediate Levels Linear",
        "policy.dead_letter": "DeadLetterPolicy",
        "policy.decide": "decide",
        "policy.explain": "Schedule Step explain",
        "policy.jitter": "Jitter",
        "policy.letter_producers": "ProducerOptions",
        "policy.levels": "DEFAULT_DELAY_LEVELS DelayLevels",
        "policy.outcomes": "Defer Drop Failure Outcome Reject Retry",
        "policy.retry": "RetryPolicy",
        "pull.delivery": "Delivery",
        "pull.health": "Health",
        "pull.report": "Report",
        "pull.rules.breaker": "Breaker",
        "pull.rules.flow": "FlowControl",
        "pull.rules.lanes": "Lanes",
        "pull.rules.lease": "Lease",
        "pull.subscriber": "Subscriber",
        "wire.dead_letter": "DeadLetter",
        "wire.envelope": "Attempt Envelope",
        "wire.names": "Naming",
        "wire.properties": "RetryProperties attempt_of delivery_attempt",
    }.items()
}

_ORIGINS = {name: module for module, names in NAMES.items() for name in names}


def package_getattr(name: str) -> Any:
    """Return `pulsar_retry.<name>`. This is the package's ``__getattr__``."""
    if name in _MODULES:
        return importlib.import_module(f"pulsar_retry.{name}")
    return _named("pulsar_retry", name, _ORIGINS)


def package_dir() -> list[str]:
    """Return what most users look for in the package. This is its ``__dir__``."""
    special = [name for name in vars(sys.modules["pulsar_retry"]) if name.startswith("__")]
    return sorted({*special, *ESSENTIAL, *SUBPACKAGES})


def getattr_of(subpackage: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a subpackage whose names are imported at their first use."""
    inside = subpackage.removeprefix("pulsar_retry") + "."
    origins = {name: each for name, each in _ORIGINS.items() if f".{each}".startswith(inside)}
    return lambda name: _named(subpackage, name, origins)


def _named(package: str, name: str, origins: dict[str, str]) -> Any:
    if name not in origins:
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(f"pulsar_retry.{origins[name]}"), name)
    setattr(sys.modules[package], name, value)  # later uses do not call this function
    return value
