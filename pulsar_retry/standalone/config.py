"""The `standalone.conf` of a broker for first runs and tests, with the reason of each setting."""

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

#: The settings of every broker that we run, in a child process or in a container.
BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "clusterName": "standalone",
        # One bookie.
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        # Delays are important for this package: be exact to a tenth of a second (default: 1 s).
        "delayedDeliveryEnabled": True,
        "delayedDeliveryTickTimeMillis": 100,
        # An acknowledgement of one message of a batch survives a redelivery.
        "acknowledgmentAtBatchIndexLevelEnabled": True,
        "systemTopicEnabled": True,
        "topicLevelPoliciesEnabled": True,
        "allowAutoTopicCreation": True,
        "transactionCoordinatorEnabled": False,
        # Topics without a subscription or a producer are kept: tests read them afterwards.
        "brokerDeleteInactiveTopicsEnabled": False,
        "forceDeleteNamespaceAllowed": True,
        "forceDeleteTenantAllowed": True,
        # There is only one broker, so there is nothing to balance.
        "loadBalancerEnabled": False,
        "brokerShutdownTimeoutMs": 5000,
        # The bookie's frames must have room for a chunk of maxMessageSize (5 MiB) with its headers.
        # With the default, the bookie resets the connection, and the broker makes new ledgers for
        # ever.
        "nettyMaxFrameSizeBytes": 5_253_120,
        # A torn entry of the journal is recognised by its digest; zlib has this one.
        "managedLedgerDigestType": "CRC32",
        # Without fsync a killed process loses nothing; only a crash of the machine does.
        "journalSyncData": False,
        # Small files: the defaults are made for servers (journals of 2 GB, entry logs of 1 GB).
        "journalMaxSizeMB": 64,
        "journalPreAllocSizeMB": 4,
        "journalMaxBackups": 0,
        "logSizeLimit": 64 << 20,
        "entryLogFilePreallocationEnabled": False,
        # Otherwise, on a nearly full disk, the bookie becomes read-only, and every send hangs.
        "diskUsageThreshold": 0.999,
        "diskUsageWarnThreshold": 0.998,
        "diskUsageLwmThreshold": 0.998,
    }
)

_KEY = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)

# Arguments set these keys, so `settings` must not.
_ARGUMENTS = {
    "brokerServicePort": "the argument 'broker_port'",
    "webServicePort": "the argument 'web_port'",
    "authenticationEnabled": "the argument 'auth'",
    "tokenSecretKey": "the argument 'auth'",
}


def own_settings(broker_port: int, web_port: int) -> dict[str, Setting]:
    """Return the settings of one broker: its ports, and the loopback device for the bookie.

    BookKeeper also has a transport inside the JVM, without a port, but this transport fails to read
    large entries back from disk.
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
    """Return the settings that switch on token authentication and authorisation with this key."""
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
    """Return *settings* in Pulsar's format. Each key occurs once: the bookie joins duplicates."""
    return "".join(f"{key}={setting_text(value)}\n" for key, value in settings.items())


def check_settings(
    settings: Mapping[str, object] | None, arguments: Mapping[str, str] = _ARGUMENTS
) -> dict[str, Setting]:
    """Return a copy of the user's settings, after a check.

    Args:
        settings: The user's settings.
        arguments: Keys that *settings* must not contain, with what sets them.

    Raises:
        ConfigError: A key or value is not possible in the file, or an argument sets the key.
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
    """Return *value* in Pulsar's format."""
    return str(value).lower() if isinstance(value, bool) else str(value)
