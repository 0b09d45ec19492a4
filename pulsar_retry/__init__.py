"""Retry letters, dead letters and delay levels for Apache Pulsar consumers."""

from pulsar_retry import _lazy
from pulsar_retry._version import __version__ as __version__

__getattr__, __all__ = _lazy.attach(__name__)  # the names are in __init__.pyi

#: What a worker needs. `dir()` lists these and the subpackages, which list their own names.
_ESSENTIAL = (
    *("Breaker", "Client", "Consumer", "DeadLetterPolicy", "Defer", "Drop", "Exponential"),
    *("Fixed", "FlowControl", "Lease", "PulsarRetryError", "Reject", "Retry", "RetryPolicy"),
    *("Subscriber", "Unavailable", "attempt_of", "start_metrics_server"),
)


def __dir__() -> list[str]:
    special = [name for name in globals() if name.startswith("__")]
    return sorted({*special, *_ESSENTIAL, *_lazy.subpackages(__name__)})
