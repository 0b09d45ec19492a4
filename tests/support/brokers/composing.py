"""The cluster of docker/compose.yaml, with the interface of `LocalCluster`."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import attrs

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone import config, ports, tokens
from pulsar_retry.standalone.jvm import health
from pulsar_retry.testing._container import missing_for_container
from pulsar_retry.testing.broker import DEFAULT_IMAGE
from support.brokers import cluster_config as conf
from support.brokers.cluster_config import TlsFiles
from support.brokers.cluster_member import BrokerMember, Member
from support.brokers.local_cluster import LocalCluster

ROOT = Path(__file__).parents[3]
_FILE = ROOT / "docker" / "compose.yaml"
#: The folder of the configuration inside the containers.
_INSIDE = Path("/pulsar/cluster")
_PATIENCE = 240.0


def missing_for_compose() -> str:
    """Return what is missing to run docker/compose.yaml; "" if nothing is missing."""
    if missing := missing_for_container(os.environ.get("PULSAR_IMAGE") or DEFAULT_IMAGE):
        return missing
    return "" if _program() else "neither `docker compose` nor docker-compose is installed"


def _program() -> list[str]:
    """Return the command of Compose on this machine; empty if it is not installed."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            result = subprocess.run([*command, "version"], capture_output=True, check=False)
            if result.returncode == 0:
                return command
    return []


@attrs.frozen
class Project:
    """A run of docker/compose.yaml under a unique name."""

    name: str
    environment: Mapping[str, str]

    def call(self, *arguments: str) -> str:
        """Call Compose and return its output.

        Raises:
            StandaloneError: Compose failed.
        """
        done = subprocess.run(
            [*_program(), "--file", str(_FILE), "--project-name", self.name, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.environment},
        )
        if done.returncode:
            raise StandaloneError(f"compose {' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout


class _InContainer:
    """The operations of a member that runs in a container. Its `_runtime` is the project."""

    _down = _was_ready = False

    @property
    def is_running(self) -> bool:
        """Whether this program has not ended it: asking Docker each time would cost seconds."""
        return not self._down

    def launch(self) -> None:
        if self._down:
            self._runtime.call("start", self.name)
            self._down = self._was_ready = False

    def stop(self) -> None:
        self._runtime.call("stop", "--timeout", "15", self.name)
        self._down = True

    def kill(self) -> None:
        self._runtime.call("kill", self.name)
        self._down = True

    def await_ready(self) -> None:
        if not health.wait_until(self._is_ready, _PATIENCE):
            logs = self._runtime.call("logs", "--tail", "30", self.name)
            raise StandaloneError(f"{self.name} was not ready after {_PATIENCE:g} s\n{logs}")


class _Container(_InContainer, Member):
    """ZooKeeper, or a bookie."""

    def await_ready(self) -> None:
        if not self._was_ready:  # asking takes a second
            super().await_ready()
            self._was_ready = True

    def _is_ready(self) -> bool:
        listens = ("sh", str(_INSIDE / "listens.sh"), str(self.port))
        try:
            self._runtime.call("exec", "-T", self.name, *listens)
        except StandaloneError:
            return False
        return True


class _BrokerContainer(_InContainer, BrokerMember):
    """A broker."""

    def _is_ready(self) -> bool:
        return health.is_ready(self.admin_url, self._token)


class ComposeCluster(LocalCluster):
    """A cluster of containers, with different ports and configuration for each cluster."""

    def __init__(self, *, tls: TlsFiles, settings: Mapping[str, config.Setting]) -> None:
        super().__init__(auth=True, tls=tls, settings=settings)
        self._name = f"pulsar-retry-{secrets.token_hex(4)}"

    def start(self) -> None:
        """Start the containers."""
        files = importlib.import_module("cluster_conf")
        self._root = self._tls.certificate.parent
        found = _neighbours(8)
        chosen = [(found + n, found + 4 + n) for n in range(2)]
        tls = [(found + 2 + n, found + 6 + n) for n in range(2)]
        more = {f"broker-{n + 1}": self._more(*each) for n, each in enumerate(tls)}
        for name, text in files.files(tuple(chosen), more).items():
            (self._root / name).write_text(text, encoding="ascii")
        shutil.copy(_FILE.parent / "cluster" / "listens.sh", self._root)
        for each in (self._root, *self._root.iterdir()):
            each.chmod(0o755)  # processes in containers may be other users
        project = Project(
            self._name,
            {
                "PULSAR_CLUSTER_CONF": str(self._root),
                "PULSAR_BROKER_PORTS": f"{found}-{found + 3}",
                "PULSAR_WEB_PORTS": f"{found + 4}-{found + 7}",
            },
        )
        self._project = project
        self._metadata = _Container("metadata", files.METADATA_PORT, project, conf.METADATA, {})
        self._bookies = tuple(
            _Container(f"bookie-{n}", port, project, conf.BOOKIE, {})
            for n, port in enumerate(files.BOOKIE_PORTS, start=1)
        )
        self._brokers = tuple(
            _BrokerContainer(
                f"broker-{n + 1}",
                chosen[n][0],
                project,
                conf.BROKER,
                {},
                web_port=chosen[n][1],
                tls_port=tls[n][0],
                web_tls_port=tls[n][1],
                token=self.admin_token,
            )
            for n in range(2)
        )
        try:
            project.call("up", "--detach")
            for each in self.brokers:
                each.await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove the containers."""
        self._project.call("down", "--volumes", "--timeout", "1")

    def _more(self, port: int, web_port: int) -> dict[str, Any]:
        """Return a broker's settings that differ from those of docker/cluster."""
        inside = TlsFiles(
            **{
                name: _INSIDE / getattr(self._tls, name).name
                for name in ("certificate", "key", "trusted")
            }
        )
        own = config.auth_settings(self._secret, tokens.sign_token(self._secret, config.ADMIN_ROLE))
        own["authenticationProviders"] += f",{conf.TLS_PROVIDER}"
        return {**conf.tls_settings(inside, port, web_port), **own, **self._settings}


def _neighbours(number: int) -> int:
    """Return the first port of a row of free ports."""
    return next(
        first
        for first in (next(ports.free_ports()) for _ in count())
        if all(map(ports.is_free, range(first, first + number)))
    )


sys.path.append(str(ROOT / "tools"))
