"""A Pulsar in a container: the official image, or an image that `docker/build.py` has made.

Both images are started in the same way: settings are `PULSAR_PREFIX_*` variables, which
`bin/apply-config-from-env.py` writes to `conf/standalone.conf`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.config import (
    BROKER_SETTINGS,
    Setting,
    own_settings,
    setting_text,
)
from pulsar_retry.standalone.jvm.health import wait_until, why_not_ready
from pulsar_retry.standalone.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

__all__ = ["PulsarContainer", "missing_for_container", "shares_network"]

_STARTUP_TIMEOUT = 120.0  # seconds
_STOP_TIMEOUT = 10  # seconds until Docker kills it
_COMMAND = (
    "bin/apply-config-from-env.py conf/standalone.conf"
    " && exec bin/pulsar standalone --no-functions-worker --no-stream-storage"
)
_MEMORY = "-Xmx512m -XX:MaxDirectMemorySize=512m"


def missing_for_container(image: str) -> str:
    """Say what is missing to run *image*, or "" if nothing is. The image is pulled if necessary."""
    try:
        # By name, because tools that start in this repository would find its folder `docker`.
        docker: Any = importlib.import_module("docker")
        importlib.import_module("testcontainers.core.container")
    except ImportError as error:
        return f"{error.name} is not installed"
    problem = _socket_problem()
    if problem:
        return f"no Docker daemon answers ({problem})"
    failures = (docker.errors.DockerException, OSError)
    try:
        client = docker.from_env()
        client.ping()
    except failures as error:
        return f"no Docker daemon answers ({_reason(error)})"
    with contextlib.closing(client):
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            try:
                client.images.pull(image)
            except failures as error:
                return (
                    f"the image {image} is not available locally and cannot be pulled "
                    f"({_reason(error)})"
                )
        except failures as error:
            return f"the Docker daemon fails ({_reason(error)})"
    return ""


def _socket_problem() -> str:
    """Say why the daemon's Unix socket cannot be used; "" if it can, or is not used.

    docker's own client could check this, but it leaves a socket open after a failure. A test run
    that turns warnings into errors would fail because of that.
    """
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not host.startswith("unix://"):
        return ""
    path = host.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return f"{path}: {error.strerror}"
    return ""


def shares_network(daemon: Mapping[str, Any]) -> bool:
    """Tell whether a container of this daemon can use our own loopback.

    It cannot if the daemon runs in a virtual machine (Docker Desktop), on another machine, without
    root's rights, or outside the container that we run in.

    Args:
        daemon: What the daemon says of itself (`docker info`).
    """
    rootless = any("rootless" in option for option in daemon.get("SecurityOptions") or ())
    return daemon.get("Name") == socket.gethostname() and not rootless


def _reason(error: Exception) -> str:
    """Return the daemon's message, without the HTTP request around it."""
    return getattr(error, "explanation", None) or str(error)


class PulsarContainer:
    """A context manager that starts a container, waits until Pulsar is ready, and removes it.

    Its ports are the same inside and outside. So the address that the broker advertises is also
    right for clients outside: a client with an `http:` service URL connects to that address.

    Where it can, it uses the network of this machine, and listens on loopback only. Elsewhere it
    has a network of its own, and Docker publishes the two ports. A network of its own is one more
    thing that can fail: a killed daemon may leave a container's address in use, and then the next
    container with this address gets only some of its packets.

    Args:
        image: The image to start.
        settings: Lines of `standalone.conf` to add or replace.
    """

    def __init__(self, image: str, settings: Mapping[str, Setting] | None = None) -> None:
        self._image = image
        self._more = dict(settings or {})
        found = free_ports()
        self._broker_port, self._web_port = next(found), next(found)
        self._shares_network = False
        self._container = self._configured()
        self._host = LOOPBACK

    @property
    def service_url(self) -> str:
        """The URL for clients."""
        return f"pulsar://{self._host}:{self._broker_port}"

    @property
    def admin_url(self) -> str:
        """The root URL of the REST API."""
        return f"http://{self._host}:{self._web_port}"

    def restart(self) -> None:
        """Restart the container, or start it again after `kill`. URLs and data stay the same."""
        self._container.get_wrapped_container().restart(timeout=_STOP_TIMEOUT)
        self._await_ready()

    def kill(self) -> None:
        """Kill the container's processes with SIGKILL."""
        self._container.get_wrapped_container().kill()

    def __enter__(self) -> Self:
        self._container.start()
        try:
            self._host = self._found_host()
            self._await_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._container.stop()
        self._container.get_docker_client().client.close()  # testcontainers leaves it open

    def _configured(self) -> DockerContainer:
        from testcontainers.core.container import DockerContainer  # optional

        _disable_missing_reaper()
        container = DockerContainer(self._image)
        container.with_command(["sh", "-c", _COMMAND])
        container.with_env("PULSAR_MEM", _MEMORY)
        self._shares_network = shares_network(container.get_docker_client().client.info())
        if self._shares_network:
            container.with_kwargs(network_mode="host")
            network = own_settings(self._broker_port, self._web_port)
        else:
            for port in (self._broker_port, self._web_port):
                container.with_bind_ports(port, port)
            network = _published(self._broker_port, self._web_port)
        for key, value in {**BROKER_SETTINGS, **self._more, **network}.items():
            container.with_env(f"PULSAR_PREFIX_{key}", setting_text(value))
        return container

    def _found_host(self) -> str:
        if self._shares_network:
            return LOOPBACK
        host = self._container.get_container_host_ip()
        # "localhost" may mean ::1, where nothing listens.
        return LOOPBACK if host == "localhost" else str(host)

    def _await_ready(self) -> None:
        problem = ""

        def over() -> bool:
            nonlocal problem
            if self._has_ended():
                problem = "it has ended"
                return True
            problem = why_not_ready(self.admin_url)
            return not problem

        wait_until(over, _STARTUP_TIMEOUT)
        if not problem:
            return
        output, errors = self._container.get_logs()
        tail = (output + errors).decode(errors="replace").splitlines()[-30:]
        raise StandaloneError(
            f"Pulsar in a container of {self._image} did not become ready within "
            f"{_STARTUP_TIMEOUT:g} s: {problem}\n" + "\n".join(tail)
        )

    def _has_ended(self) -> bool:
        container = self._container.get_wrapped_container()
        container.reload()
        return container.status in ("exited", "dead")


def _published(broker_port: int, web_port: int) -> dict[str, Setting]:
    """Return the settings of a broker whose ports Docker publishes."""
    return {
        "brokerServicePort": broker_port,
        "webServicePort": web_port,
        "bindAddress": "0.0.0.0",
        # It must also be right inside the container: the health check connects to it.
        "advertisedAddress": LOOPBACK,
    }


def _disable_missing_reaper() -> None:
    """Switch off Testcontainers' reaper if its image is missing; otherwise nothing starts."""
    from testcontainers.core.config import testcontainers_config  # optional

    if "TESTCONTAINERS_RYUK_DISABLED" not in os.environ:
        testcontainers_config.ryuk_disabled = bool(
            missing_for_container(testcontainers_config.ryuk_image)
        )
