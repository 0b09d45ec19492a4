"""`LocalCluster`: a real cluster of several processes on this machine."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Self

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone import config, ports, tokens
from pulsar_retry.standalone.data.folder import Folder
from pulsar_retry.standalone.jars.lock import find_release, jars_for
from pulsar_retry.standalone.jars.store import JarStore, to_stderr
from pulsar_retry.standalone.jvm.java import find_java
from support.brokers import cluster_config as conf
from support.brokers.cluster_member import (
    STARTUP_TIMEOUT,
    BookieMember,
    BrokerMember,
    Member,
    Runtime,
    run_jvm,
)

__all__ = ["LocalCluster"]

_BROKERS = _BOOKIES = 2
_PORTS_OF_A_BROKER = 4
_SETUP = conf.Program("org.apache.pulsar.PulsarClusterMetadataSetup", (), "96m", "64m")


class LocalCluster:
    """A real Pulsar cluster on loopback: ZooKeeper, two bookies and two brokers.

    It is for tests that need more than one process: a broker is killed and its topics move to
    the other one, topics are unloaded, or a bookie is missing. Each process is a JVM with a guard,
    as in `Standalone`, and always ends together with this process. All of them need about 1.2 GB of
    memory and 10 to 25 seconds to start. The first start downloads Pulsar's jars.

    Every entry is written to both bookies, and is acknowledged when one of them has it. While one
    bookie is missing, open ledgers continue. New ledgers wait until it is back, and so do new
    topics and topics that move.

    Clients need a token (see `token`) or a certificate. It is a context manager.

    Args:
        tls: The files with which the brokers serve TLS, on additional ports.
        settings: Lines of `broker.conf` to add or to replace.

    Raises:
        StandaloneError: The jars could not be downloaded, there is no Java, or a process did not
            become ready. In the last case the message ends with the last lines of its log.
    """

    def __init__(self, tls: conf.TlsFiles, settings: Mapping[str, config.Setting]) -> None:
        self._secret = secrets.token_bytes(tokens.SECRET_BYTES)
        self._tls, self._settings = tls, settings

    def __enter__(self) -> Self:
        release = find_release(None)
        java = find_java()
        jars = JarStore(progress=to_stderr).ensure(jars_for(release))
        self._root = Path(tempfile.mkdtemp(prefix="pulsar-cluster-"))
        runtime = Runtime(java, jars, self._root)
        self._make(runtime)
        try:
            self.metadata.start()
            self._set_up(runtime)
            self._start_all()
        except BaseException:  # also on Ctrl-C: leave no process and no folder behind
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Their data is removed anyway, so there is no need for a clean end.
        for each in self.members:
            each.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def members(self) -> tuple[Member, ...]:
        """All processes, the brokers first. They can be stopped in this order."""
        return (*self.brokers, *self.bookies, self.metadata)

    @property
    def service_url(self) -> str:
        """The URL for clients, with the addresses of all brokers."""
        return "pulsar://" + ",".join(f"{ports.LOOPBACK}:{each.port}" for each in self.brokers)

    @property
    def service_url_tls(self) -> str:
        """The URL for clients with TLS."""
        hosts = [f"{ports.LOOPBACK}:{each.tls_port}" for each in self.brokers]
        return f"pulsar+ssl://{','.join(hosts)}"

    @property
    def admin_url_tls(self) -> str:
        """The root of the first broker's REST API with TLS."""
        return f"https://{ports.LOOPBACK}:{self.brokers[0].web_tls_port}"

    def token(self, role: str) -> str:
        """Return a token for *role*. A role has no rights until they are granted."""
        return tokens.sign_token(self._secret, role)

    def _make(self, runtime: Runtime) -> None:
        """Choose the ports, and make the members."""
        found = list(islice(ports.free_ports(), 1 + _BOOKIES + _PORTS_OF_A_BROKER * _BROKERS))
        store = found.pop()
        data = runtime.root
        self.metadata = Member(
            "metadata",
            store,
            runtime,
            conf.METADATA,
            conf.metadata_settings(store, data / "metadata" / "data"),
        )
        self.bookies = tuple(
            BookieMember(
                name,
                port,
                runtime,
                conf.BOOKIE,
                conf.bookie_settings(port, store, data / name / "data"),
            )
            for name, port in ((f"bookie-{n + 1}", found.pop()) for n in range(_BOOKIES))
        )
        self.brokers = tuple(
            self._broker(
                runtime, f"broker-{n + 1}", [found.pop() for _ in range(_PORTS_OF_A_BROKER)], store
            )
            for n in range(_BROKERS)
        )

    def _broker(self, runtime: Runtime, name: str, chosen: list[int], store: int) -> BrokerMember:
        port, web_port, tls_port, web_tls_port = chosen
        settings = conf.broker_settings(port, web_port, store)
        token = self.token(config.ADMIN_ROLE)
        settings |= config.auth_settings(self._secret, token)
        settings |= conf.tls_settings(self._tls, tls_port, web_tls_port)
        providers = (str(settings["authenticationProviders"]), conf.TLS_PROVIDER)
        settings["authenticationProviders"] = ",".join(providers)
        return BrokerMember(
            name,
            port,
            runtime,
            conf.BROKER,
            settings | dict(self._settings),
            web_port=web_port,
            tls_port=tls_port,
            web_tls_port=web_tls_port,
            token=token,
        )

    def _set_up(self, runtime: Runtime) -> None:
        """Write the metadata that brokers and bookies need to ZooKeeper."""
        folder = Folder.open(runtime.root / "setup")
        brokers = [(each.port, each.web_port) for each in self.brokers]
        arguments = conf.setup_arguments(self.metadata.port, brokers)
        process = run_jvm(runtime, folder, _SETUP, *arguments)
        try:
            code = process.wait(STARTUP_TIMEOUT)
        finally:
            process.kill()
        if code != 0:
            raise StandaloneError(f"the set-up of the metadata failed\n{folder.tail()}")

    def _start_all(self) -> None:
        """Start bookies and brokers at the same time: brokers wait for bookies by themselves."""
        waiting = (*self.bookies, *self.brokers)
        for each in waiting:
            each.launch()
        with ThreadPoolExecutor(len(waiting)) as pool:
            list(pool.map(Member.await_ready, waiting))
