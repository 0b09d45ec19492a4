"""The order in which tests look for a broker."""

from __future__ import annotations

import contextlib
import importlib
import os
import urllib.request
from typing import Any

import pulsar
import pytest

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.jars.lock import VERSION_VARIABLE
from pulsar_retry.testing import _container as container_module
from pulsar_retry.testing import broker as broker_module
from pulsar_retry.testing.broker import (
    BrokerChoice,
    RunningBroker,
    find_broker,
    running_broker,
)


@pytest.fixture
def nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without a broker in the environment and without Docker."""
    monkeypatch.delenv("PULSAR_SERVICE_URL", raising=False)
    monkeypatch.delenv("PULSAR_RETRY_REQUIRE_CONTAINER", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")


@pytest.mark.usefixtures("nothing_there")
def test_standalone_is_the_last_resort() -> None:
    """Without Docker it is the child process, with the reason why."""
    choice = find_broker()
    assert choice.kind == "standalone"
    assert "no Docker daemon answers" in choice.why_no_container


@pytest.mark.usefixtures("nothing_there")
def test_required_container_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who demands a container gets an error, not another broker."""
    monkeypatch.setenv("PULSAR_RETRY_REQUIRE_CONTAINER", "1")
    with pytest.raises(StandaloneError, match="REQUIRE_CONTAINER=1, but no Docker"):
        find_broker()


def test_environment_comes_first(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that the environment names is used as it is, and neither stopped nor restarted."""
    monkeypatch.setenv("PULSAR_SERVICE_URL", broker.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", f"{broker.admin_url}/")
    with running_broker() as found:
        assert found == RunningBroker("environment", broker.service_url, broker.admin_url)
    with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/brokers/health") as answer:
        assert answer.status == 200


def test_broker_of_the_environment_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables are named in the error."""
    monkeypatch.setattr(broker_module, "_ENVIRONMENT_TIMEOUT", 0.1)
    monkeypatch.setenv("PULSAR_SERVICE_URL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://127.0.0.1:1")
    with (
        pytest.raises(StandaloneError, match=r"PULSAR_SERVICE_URL=pulsar://127\.0\.0\.1:1"),
        running_broker(),
    ):
        pass


@pytest.mark.container
def test_container_is_restarted_with_its_data(broker: RunningBroker) -> None:
    """The container path has the same hooks and URLs as the child process."""
    assert broker.kind == "container"
    assert os.environ.get("PULSAR_IMAGE", broker_module.DEFAULT_IMAGE)
    if broker.restart is None or broker.kill is None:
        pytest.skip("the broker is shared with other workers")
    broker.kill()
    broker.restart()
    with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/clusters") as answer:
        assert b"standalone" in answer.read()


@pytest.mark.container
def test_container_with_a_network_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the daemon is elsewhere, its ports are published, and are the same inside and out."""
    docker: Any = importlib.import_module("docker")
    with contextlib.closing(docker.from_env()) as daemon:
        if not daemon.networks.list(names=["bridge"]):
            pytest.skip("skipped, because the Docker daemon has no bridge network")
    monkeypatch.setattr(container_module, "shares_network", lambda _daemon: False)
    with running_broker(BrokerChoice("container", "")) as found:
        client = pulsar.Client(found.admin_url)  # which connects to the address that is advertised
        client.create_producer("own-network").send(b"")
        client.close()


@pytest.mark.usefixtures("nothing_there")
def test_the_environment_chooses_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable chooses the release of the official image, and of the child process."""
    monkeypatch.delenv("PULSAR_IMAGE", raising=False)
    monkeypatch.setenv(VERSION_VARIABLE, "4.0")
    asked: list[str] = []
    monkeypatch.setattr(broker_module, "missing_for_container", asked.append)
    find_broker()
    assert asked == ["apachepulsar/pulsar:4.0.7"]
    with running_broker(BrokerChoice("standalone", "")) as found:
        url = f"{found.admin_url}/admin/v2/brokers/version"
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == b"4.0.7"
