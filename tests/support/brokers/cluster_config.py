"""The configuration of each process of a cluster on one machine. Pure: values in, lines out.

`docker/compose.yaml` starts the same cluster in containers; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from types import MappingProxyType

import attrs

from pulsar_retry.standalone.config import BROKER_SETTINGS, Setting
from pulsar_retry.standalone.ports import LOOPBACK, LOOPBACK_DEVICE

__all__ = [
    "BOOKIE",
    "BROKER",
    "CLUSTER_BROKER_SETTINGS",
    "CLUSTER_NAME",
    "METADATA",
    "TLS_PROVIDER",
    "Program",
    "TlsFiles",
    "bookie_settings",
    "broker_settings",
    "metadata_settings",
    "setup_arguments",
    "tls_settings",
]

CLUSTER_NAME = "local"

#: Authenticates a client by its certificate.
TLS_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderTls"

#: The settings of every bookie, including those of `BROKER_SETTINGS` for the embedded bookie.
_BOOKIE_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        **{key: BROKER_SETTINGS[key] for key in BROKER_SETTINGS if key.startswith("journal")},
        **{key: BROKER_SETTINGS[key] for key in BROKER_SETTINGS if key.startswith("diskUsage")},
        "nettyMaxFrameSizeBytes": BROKER_SETTINGS["nettyMaxFrameSizeBytes"],
        "logSizeLimit": BROKER_SETTINGS["logSizeLimit"],
        "entryLogFilePreallocationEnabled": False,
        # The other storage has caches outside the heap whose size is made for servers.
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
        "skipListSizeLimit": 16 << 20,
        "httpServerEnabled": False,
        "allowLoopback": True,
    }
)

#: The settings of every broker of a cluster: `BROKER_SETTINGS` with additions and changes.
CLUSTER_BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        **BROKER_SETTINGS,
        "clusterName": CLUSTER_NAME,
        # Each entry is written to both bookies, and one of them is enough. If the other one is
        # missing, an open ledger continues, instead of looking for a third bookie that does not
        # exist.
        "managedLedgerDefaultEnsembleSize": 2,
        "managedLedgerDefaultWriteQuorum": 2,
        "managedLedgerDefaultAckQuorum": 1,
        "bookkeeper_delayEnsembleChange": True,
        # After this time a killed broker is noticed, and its topics move to another one.
        "metadataStoreSessionTimeoutMillis": 3000,
        # Topics are distributed over the brokers, and stay there until a test moves them.
        "loadBalancerEnabled": True,
        "loadBalancerSheddingEnabled": False,
        "loadBalancerAutoBundleSplitEnabled": False,
        "defaultNumberOfNamespaceBundles": 8,
    }
)

#: The settings of ZooKeeper. Its tick of half a second allows short sessions.
_METADATA_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "tickTime": 500,
        "maxClientCnxns": 0,
        "admin.enableServer": False,
        "forceSync": "no",
    }
)


@attrs.frozen
class Program:
    """The program of a JVM in a cluster, with its limits.

    Attributes:
        main: The class.
        arguments: The arguments before the name of the configuration file.
        heap: The heap limit, as for `-Xmx`.
        direct_memory: The limit on memory outside the heap, in the same form.
        properties: System properties.
    """

    main: str
    arguments: tuple[str, ...]
    heap: str
    direct_memory: str
    properties: tuple[str, ...] = ()


_DRIVERS = "org.apache.pulsar.metadata.bookkeeper"

METADATA = Program("org.apache.zookeeper.server.quorum.QuorumPeerMain", (), "64m", "32m")
BOOKIE = Program(
    "org.apache.bookkeeper.server.Main",
    ("--conf",),
    "192m",
    "128m",
    # Without them a bookie does not understand "metadata-store:" URLs.
    (
        f"bookkeeper.metadata.bookie.drivers={_DRIVERS}.PulsarMetadataBookieDriver",
        f"bookkeeper.metadata.client.drivers={_DRIVERS}.PulsarMetadataClientDriver",
    ),
)
BROKER = Program("org.apache.pulsar.PulsarBrokerStarter", ("--broker-conf",), "320m", "256m")


@attrs.frozen(kw_only=True)
class TlsFiles:
    """The PEM files with which brokers serve TLS.

    Attributes:
        certificate: The brokers' certificate, which must name ``127.0.0.1`` or ``localhost``.
        key: Its private key, unencrypted, in PKCS #8.
        trusted: The certificates with which clients' certificates are checked. Clients need no
            certificate. With *auth*, a client with a trusted certificate has its common name as
            role.
    """

    certificate: Path = attrs.field(converter=Path)
    key: Path = attrs.field(converter=Path)
    trusted: Path = attrs.field(converter=Path)


def metadata_settings(port: int, data: PurePath) -> dict[str, Setting]:
    """Return ZooKeeper's configuration."""
    return {
        **_METADATA_SETTINGS,
        "dataDir": str(data),
        "clientPort": port,
        "clientPortAddress": LOOPBACK,
    }


def setup_arguments(metadata_port: int, brokers: list[tuple[int, int]]) -> list[str]:
    """Return the arguments of the metadata's one-time set-up; *brokers* are pairs of ports."""
    store = f"zk:{LOOPBACK}:{metadata_port}"
    service = ",".join(f"{LOOPBACK}:{port}" for port, _ in brokers)
    web = ",".join(f"{LOOPBACK}:{port}" for _, port in brokers)
    return [
        *("--cluster", CLUSTER_NAME),
        *("--metadata-store", store, "--configuration-metadata-store", store),
        *("--web-service-url", f"http://{web}", "--broker-service-url", f"pulsar://{service}"),
        *("--initial-num-stream-storage-containers", "0"),
    ]


def bookie_settings(
    port: int, metadata_port: int, data: PurePath, loopback: str = LOOPBACK_DEVICE
) -> dict[str, Setting]:
    """Return a bookie's configuration; *loopback* is the network device."""
    return {
        **_BOOKIE_SETTINGS,
        "bookiePort": port,
        "bookieId": f"bookie-{port}",
        "advertisedAddress": LOOPBACK,
        "listeningInterface": loopback,
        "journalDirectory": str(data / "journal"),
        "ledgerDirectories": str(data / "ledgers"),
        # It must not end with a path; with one, the error is "cluster not initialized".
        "metadataServiceUri": f"metadata-store:zk:{LOOPBACK}:{metadata_port}",
    }


def broker_settings(port: int, web_port: int, metadata_port: int) -> dict[str, Setting]:
    """Return a broker's configuration."""
    return {
        **CLUSTER_BROKER_SETTINGS,
        "metadataStoreUrl": f"zk:{LOOPBACK}:{metadata_port}",
        "configurationMetadataStoreUrl": f"zk:{LOOPBACK}:{metadata_port}",
        "bindAddress": LOOPBACK,
        "advertisedAddress": LOOPBACK,
        "brokerServicePort": port,
        "webServicePort": web_port,
    }


def tls_settings(files: TlsFiles, port: int, web_port: int) -> dict[str, Setting]:
    """Return the settings with which a broker serves TLS, on additional ports."""
    return {
        "brokerServicePortTls": port,
        "webServicePortTls": web_port,
        "tlsCertificateFilePath": str(files.certificate.absolute()),
        "tlsKeyFilePath": str(files.key.absolute()),
        "tlsTrustCertsFilePath": str(files.trusted.absolute()),
    }
