"""The cluster of several processes that some tests run on, and the certificates of its brokers."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPMethod
from pathlib import Path
from typing import Any

import attrs
import pulsar
import trustme
from cryptography.hazmat.primitives import serialization as pem

import pulsar_retry as pr
from pulsar_retry.errors import StandaloneError
from pulsar_retry.replay import Cluster as Connection
from support.brokers.admin import Admin
from support.brokers.cluster_config import TlsFiles
from support.brokers.cluster_member import BrokerMember
from support.brokers.hostile import HOSTILE
from support.brokers.local_cluster import LocalCluster
from support.faults.ledger import patiently
from support.waiting import is_soon

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: If it is set (in CI), tests fail if the cluster does not start; otherwise they are skipped.
_REQUIRED = "PULSAR_RETRY_REQUIRE_CLUSTER"
_NEEDED_MIB = 2560
#: A client without credentials may do everything, so that tools without tokens work here too.
_SETTINGS = {**HOSTILE, "anonymousUserRole": "admin"}


@attrs.frozen
class Certificates:
    """Certificates of a test authority, as PEM files.

    Attributes:
        authority: The authority's certificate.
        broker: The brokers' certificate, which is valid only for 127.0.0.1.
        client: The certificate and key of a client whose role is ``robot``.
        stranger: The certificate of another authority, which has not issued the other certificates.
    """

    authority: Path
    broker: TlsFiles
    client: tuple[Path, Path]
    stranger: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Issue the certificates."""
        authority, stranger = folder / "ca.pem", folder / "stranger.pem"
        ours = trustme.CA()
        ours.cert_pem.write_to_path(authority)
        trustme.CA().cert_pem.write_to_path(stranger)
        broker = _write(ours.issue_cert("127.0.0.1"), folder / "broker")
        client = _write(ours.issue_cert("robot.test", common_name="robot"), folder / "client")
        return cls(
            authority,
            TlsFiles(certificate=broker[0], key=broker[1], trusted=authority),
            client,
            stranger,
        )


def _write(issued: trustme.LeafCert, stem: Path) -> tuple[Path, Path]:
    """Write a certificate and its key; Java reads keys only in PKCS #8."""
    certificate, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
    certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    private = pem.load_pem_private_key(issued.private_key_pem.bytes(), None)
    form = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    key.write_bytes(private.private_bytes(*form))
    return certificate, key


@attrs.frozen
class RunningCluster:
    """A cluster with authentication and TLS, and the operations that tests need.

    Attributes:
        it: The cluster's processes.
        certificates: The certificates of its brokers and of a client.
    """

    it: LocalCluster
    certificates: Certificates

    def connection(self, role: str = "admin", **options: Any) -> Connection:
        """Return how *role* connects to the cluster, with TLS."""
        options.setdefault("service_url", self.it.service_url_tls)
        options.setdefault("admin_url", self.it.admin_url_tls)
        options.setdefault("tls_trust_certs_file", str(self.certificates.authority))
        return Connection(token=self.it.token(role), **options)

    def client(self, role: str = "admin", **options: Any) -> pr.Client:
        """Open a client with the role *role*."""
        token = pulsar.AuthenticationToken(self.it.token(role))
        options.setdefault("operation_timeout_seconds", 90)
        return pr.Client(self.it.service_url, token, logger=QUIET, **options)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the REST API of a running broker.

        Raises:
            OSError: The broker refuses, or no broker runs.
        """
        return self._admin().call(HTTPMethod(method), path, body)

    def topics(self, namespace: str) -> list[str]:
        """Return the names of the namespace's topics; each partition is a name."""
        return self._admin().topics(namespace)

    def backlog(self, topic: str, subscription: str) -> int:
        """Return how many messages a subscription has to deliver, over all partitions."""
        admin = self._admin()
        names = [f"{topic}-partition-{n}" for n in range(admin.partitions(topic))] or [topic]
        return sum(admin.backlog(name, subscription) for name in names)

    def owner(self, topic: str) -> BrokerMember:
        """Return the broker that serves a topic, or a partition."""
        found = json.loads(patiently(lambda: self._look_up(topic), OSError))["brokerUrl"]
        return next(each for each in self.it.brokers if each.service_url == found)

    def other(self, broker: BrokerMember) -> BrokerMember:
        """Return the broker that is not *broker*."""
        return next(each for each in self.it.brokers if each is not broker)

    def move(self, topic: str) -> int:
        """Move the bundle of a topic, or partition, to the other broker.

        A broker that has not reported a new bundle yet may get it back. Then the bundle is unloaded
        again.

        Returns:
            How often the bundle was unloaded.

        Raises:
            TimeoutError: the bundle comes back for a long time.
        """
        owner = self.owner(topic)
        namespace = topic.partition("://")[2].rpartition("/")[0]
        # The name of a broker is the address of its REST API.
        name = self.other(owner).admin_url.removeprefix("http://")
        path = f"namespaces/{namespace}/{self.bundle(topic)}/unload?destinationBroker={name}"
        for unloads in range(1, 25):
            patiently(lambda: self.call("PUT", path), OSError)
            if is_soon(lambda: self.owner(topic) is not owner, within=10.0):
                return unloads
        raise TimeoutError(f"{topic} comes back to {owner.name}")

    def bundle(self, topic: str) -> str:
        """Return the bundle of a topic, which need not exist; the brokers move whole bundles."""
        return patiently(lambda: self._look_up(topic, "/bundle"), OSError).strip('"')

    def _look_up(self, topic: str, what: str = "") -> str:
        path = f"lookup/v2/topic/{topic.replace('://', '/')}{what}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self._running().admin_url}/{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def _admin(self) -> Admin:
        return Admin(self._running().admin_url)

    def _running(self) -> BrokerMember:
        return next((each for each in self.it.brokers if each.is_running), self.it.brokers[0])

    def mend(self) -> None:
        """Start every process that a test has killed."""
        for each in reversed(self.it.members):
            each.launch()
        for each in reversed(self.it.members):
            each.await_ready()


@contextmanager
def running_cluster(folder: Path) -> Iterator[RunningCluster]:
    """Start a cluster, and stop it at the end.

    Raises:
        StandaloneError: There is too little memory, or the cluster does not start; the first line
            says why.
    """
    available = _available_mib()
    if available is not None and available < _NEEDED_MIB:
        raise StandaloneError(f"{_NEEDED_MIB} MiB of memory are needed, {available} are available")
    certificates = Certificates.make(folder)
    with LocalCluster(certificates.broker, _SETTINGS) as it:
        yield RunningCluster(it, certificates)


def is_required() -> bool:
    """Return whether a missing cluster is an error."""
    return os.environ.get(_REQUIRED) == "1"


def _available_mib() -> int | None:
    """Return the memory that is available without swapping; None if this system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = dict(line.split(":", 1) for line in lines)
    return int(found["MemAvailable"].split()[0]) // 1024
