"""Deliver a subscription to an HTTP endpoint, as Pub/Sub push does, and verify requests there.

It needs the extra: ``pip install "pulsar-retry[push]"``.
"""

from pulsar_retry.push import _needs as _needs
from pulsar_retry.push.dispatcher import Dispatcher
from pulsar_retry.push.errors import PushNacked
from pulsar_retry.push.form import Connections, Form
from pulsar_retry.push.pacing import Pace
from pulsar_retry.push.tokens import ServiceAccount
from pulsar_retry.push.verifier import KeysUnavailableError, VerificationError, Verifier

__all__ = [
    "Connections",
    "Dispatcher",
    "Form",
    "KeysUnavailableError",
    "Pace",
    "PushNacked",
    "ServiceAccount",
    "VerificationError",
    "Verifier",
]
