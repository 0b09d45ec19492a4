"""The wire format: topic names and message properties, as in Java, Go and TDMQ. Pure."""

from pulsar_retry.wire.dead_letter import DeadLetter
from pulsar_retry.wire.envelope import Envelope
from pulsar_retry.wire.names import Naming
from pulsar_retry.wire.properties import RetryProperties, attempt_of

__all__ = [
    "DeadLetter",
    "Envelope",
    "Naming",
    "RetryProperties",
    "attempt_of",
]
