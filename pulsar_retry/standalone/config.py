"""The `standalone.conf` of a broker for first runs and tests, and what each setting is for."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from types import MappingProxyType

from pulsar_retry.errors import ConfigError
from pulsar_retry.standalone.ports import LOOPBACK, LOOPBACK_DEVICE

__all__ = [
    "ADMIN_ROLE",
    "BROKER_SETTINGS",
    "Setting",
    "auth_settings",
    "check_settings",
    "format_conf",
    "own_settings",
    "setting_text",
]

Setting = str | int | float | bool

ADMIN_ROLE = "admin"

#: What every broker that we run gets, in a child process or in a container.
BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "clusterName": "standalone",
        # One bookie.
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        # Delays are what this package is about: be exact to a tenth of a second (default: 1 s).
        "delayedDeliveryEnabled": True,
        "delayedDeliveryTickTimeMillis": 100,
        # Acknowledging one message of a batch holds, also over a redelivery.
        "acknowledgmentAtBatchIndexLevelEnabled": True,
        "systemTopicEnabled": True,
        "topicLevelPoliciesEnabled": True,
        "allowAutoTopicCreation": True,
        "transactionCoordinatorEnabled": False,
        # Topics without a subscription or a producer stay: tests look at them afterwards.
        "brokerDeleteInactiveTopicsEnabled": False,
        "forceDeleteNamespaceAllowed": True,
        "forceDeleteTenantAllowed": True,
        # There is one broker: nothing to balance, and bundles that move disturb.
        "loadBalancerEnabled": False,
        "brokerShutdownTimeoutMs": 5000,
        # The bookie's frames must hold a chunk of maxMessageSize (5 MiB) with its headers. With
        # the default it resets the connection, and the broker makes new ledgers for ever.
        "nettyMaxFrameSizeBytes": 5_253_120,
        # A process that is killed loses nothing without fsync, only a machine that crashes does.
        "journalSyncData": False,
        # Small files: the defaults are made for servers (2 GB a journal, 1 GB an entry log).
        "journalMaxSizeMB": 64,
        "journalPreAllocSizeMB": 4,
        "journalMaxBackups": 0,
        "logSizeLimit": 64 << 20,
        "entryLogFilePreallocationEnabled": False,
        # On a nearly full disk the bookie would turn read-only, and every send would hang.
        "diskUsageThreshold": 0.999,
        "diskUsageWarnThreshold": 0.998,
        "diskUsageLwmThreshold": 0.998,
    }
)

_KEY = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)

# Set by arguments, so not by `settings`, which would contradict them.
_ARGUMENTS = {
    "brokerServicePort": "the argument 'broker_port'",
    "webServicePort": "the argument 'web_port'",
    "authenticationEnabled": "the argument 'auth'",
    "tokenSecretKey": "the argument 'auth'",
}


def own_settings(broker_port: int, web_port: int) -> dict[str, Setting]:
    """Return what makes a broker ours alone: its ports, and the bookie's, on loopback.

    BookKeeper could be spoken to inside the JVM without a port, but its local transport fails to
    read large entries back from disk.
    """
    return {
        "bindAddress": LOOPBACK,
        "advertisedAddress": LOOPBACK,
        "brokerServicePort": broker_port,
        "webServicePort": web_port,
        "listeningInterface": LOOPBACK_DEVICE,
        "allowLoopback": True,
    }


def auth_settings(secret: bytes, admin_token: str) -> dict[str, Setting]:
    """Return what turns token authentication and authorisation on, for the given key."""
    package = "org.apache.pulsar"
    return {
        "authenticationEnabled": True,
        "authenticationProviders": f"{package}.broker.authentication.AuthenticationProviderToken",
        "authorizationEnabled": True,
        "superUserRoles": ADMIN_ROLE,
        "tokenSecretKey": f"data:;base64,{base64.b64encode(secret).decode('ascii')}",
        "brokerClientAuthenticationPlugin": f"{package}.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{admin_token}",
    }


def format_conf(settings: Mapping[str, Setting]) -> str:
    """Return *settings* as Pulsar reads them. Each key stands once: the bookie joins doubles."""
    return "".join(f"{key}={setting_text(value)}\n" for key, value in settings.items())


def check_settings(
    settings: Mapping[str, object] | None, arguments: Mapping[str, str] = _ARGUMENTS
) -> dict[str, Setting]:
    """Return a copy of what a user asks for.

    Args:
        settings: It.
        arguments: What sets a key that is no matter of *settings*.

    Raises:
        ConfigError: A key or value can't stand in the file, or an argument sets it.
    """
    checked: dict[str, Setting] = {}
    for key, value in (settings or {}).items():
        name = f"settings[{key!r}]"
        if key in arguments:
            raise ConfigError.bad(name, value, f"to be set by {arguments[key]}")
        if not _KEY.fullmatch(key):
            raise ConfigError.bad(name, value, "the name of a setting of standalone.conf")
        if not isinstance(value, str | int | float) or "\n" in str(value):
            raise ConfigError.bad(name, value, "a string in one line, a number or a bool")
        checked[key] = value
    return checked


def setting_text(value: Setting) -> str:
    """Return *value* as Pulsar writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
