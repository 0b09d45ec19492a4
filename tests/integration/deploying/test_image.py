"""The image of this package, as a container with no more rights than it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_retry.standalone.ports import free_ports
from support.waiting import eventually

ROOT = Path(__file__).parents[3]
IMAGE = os.environ.get("PULSAR_RETRY_IMAGE", "")

#: Seconds for a container to be healthy: Docker asks every ten seconds.
HEALTHY = 90.0

Start = Callable[..., str]


def docker(*arguments: str, check: bool = True) -> str:
    """Run Docker's client and return what it prints."""
    done = subprocess.run(
        [shutil.which("docker") or "docker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout
    return done.stdout.strip()


@pytest.fixture(scope="session", autouse=True)
def has_image() -> None:
    """Skip everything where there is no image to be tried."""
    if not IMAGE:
        pytest.skip("skipped, because PULSAR_RETRY_IMAGE names no image: see docker/README.md")
    if shutil.which("docker") is None or "Server" not in docker("version", check=False):
        pytest.skip("skipped, because no Docker daemon answers")


@pytest.fixture
def start(broker) -> Iterator[Start]:
    """Return a function that starts a container with few rights, and returns its name."""
    names: list[str] = []

    def start(*command: str, options: tuple[str, ...] = (), **environment: str) -> str:
        name = f"image-test-{uuid.uuid4().hex}"
        names.append(name)
        environment |= {
            "PULSAR_SERVICE_URL": broker.service_url,
            "PULSAR_ADMIN_URL": broker.admin_url,
        }
        settings = [f"--env={key}={value}" for key, value in environment.items()]
        few = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        docker(
            "run",
            "-d",
            "--name",
            name,
            "--network=host",
            *few,
            *settings,
            *options,
            IMAGE,
            *command,
        )
        return name

    yield start
    for name in names:
        docker("rm", "--force", name, check=False)


def await_health(name: str) -> None:
    """Wait until Docker says that a container is healthy."""

    def is_healthy() -> bool:
        state = docker("inspect", "--format", "{{.State.Status}} {{.State.Health.Status}}", name)
        assert state.startswith("running"), docker("logs", name)
        return state.endswith(" healthy")

    eventually(is_healthy, HEALTHY)


def assert_ends_well(name: str) -> None:
    """Stop a container as orchestrators do, and expect that it ends by itself, with 0."""
    docker("stop", "--time", "40", name)
    assert "0" == docker("inspect", "--format", "{{.State.ExitCode}}", name), docker("logs", name)


def test_a_worker(start, topic, publish):
    """It is healthy, handles a message, and drains when it is stopped."""
    port = next(free_ports())
    name = start(
        "worker.py",
        options=(
            f"--volume={ROOT / 'docker' / 'kubernetes' / 'worker.py'}:/app/worker.py:ro",
            "--entrypoint=python3",
        ),
        TOPIC=topic,
        METRICS_PORT=str(port),
        PULSAR_RETRY_HEALTH_URL=f"http://127.0.0.1:{port}/readyz",
    )
    await_health(name)
    publish()
    eventually(lambda: "handled (" in docker("logs", name))
    assert_ends_well(name)
    assert "1 acknowledged" in docker("logs", name)


@pytest.mark.parametrize("kind", ["push", "metrics", "console"])
def test_what_the_command_serves(start, topic, namespace, kind):
    """Push, the exporter and the console are healthy, and end with 0."""
    port = next(free_ports())
    url = f"http://127.0.0.1:{port}"
    match kind:
        case "push":
            endpoint = "--endpoint=http://127.0.0.1:9/"
            command = ("push", "serve", "--topic", topic, "--subscription=webhook", endpoint)
            command, url = (*command, f"--listen=127.0.0.1:{port}"), f"{url}/readyz"
        case "metrics":
            command, url = ("metrics", namespace, f"--listen=127.0.0.1:{port}"), f"{url}/metrics"
        case _:
            command, url = (
                ("console", f"--namespace={namespace}", f"--port={port}"),
                f"{url}/style.css",
            )
    name = start(*command, PULSAR_RETRY_HEALTH_URL=url)
    await_health(name)
    assert_ends_well(name)


def test_it_is_not_root_and_has_all_parts():
    """The user is a number that Kubernetes can check, and each extra is there."""
    assert "65532:65532" == docker("inspect", "--format", "{{.Config.User}}", IMAGE)
    checks = (
        "import h11, jinja2, starlette, uvicorn, opentelemetry.trace, ssl; "
        "from pulsar_retry.native import loading; "
        "assert ssl.create_default_context().get_ca_certs(); print('all there')"
    )
    printed = docker("run", "--rm", "--read-only", "--entrypoint=python3", IMAGE, "-c", checks)
    assert "all there" == printed
    assert "version" in docker("run", "--rm", "--read-only", IMAGE, "--version")
