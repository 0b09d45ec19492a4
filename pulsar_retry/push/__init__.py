"""Deliver a subscription to an HTTP endpoint, as Pub/Sub push does, and verify requests there.

It needs the extra: ``pip install "pulsar-retry[push]"``.
"""

from pulsar_retry.push import _needs as _needs
from pulsar_retry.push.auth.tokens import ServiceAccount
from pulsar_retry.push.auth.verifier import KeysUnavailableError, VerificationError, Verifier
from pulsar_retry.push.dispatcher import Dispatcher
from pulsar_retry.push.endpoint import Guard
from pulsar_retry.push.errors import PushNacked
from pulsar_retry.push.form import Connections, Form
from pulsar_retry.push.pacing.pacer import Pace

__all__ = [
    "Connections",
    "Dispatcher",
    "Form",
    "Guard",
    "KeysUnavailableError",
    "Pace",
    "PushNacked",
    "ServiceAccount",
    "VerificationError",
    "Verifier",
]
