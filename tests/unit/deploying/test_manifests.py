"""Manifests and the compose file: valid, and in agreement with the code."""

from __future__ import annotations

import importlib
import inspect
import runpy
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import pulsar_retry as pr
from pulsar_retry.cli import push

DOCKER = Path(__file__).parents[3] / "docker"
KUBERNETES = DOCKER / "kubernetes"
COMPOSE = DOCKER / "image" / "compose.yaml"

#: Seconds for closing, after what is in hand is settled.
CLOSING = 10.0

DOCUMENTS = {
    f"{path.stem}-{document['kind']}": document
    for path in sorted(KUBERNETES.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
DEPLOYMENTS = {
    each["metadata"]["name"]: each for each in DOCUMENTS.values() if each["kind"] == "Deployment"
}


def seconds(text: str) -> float:
    """Return a duration of compose, such as ``40s``."""
    return float(text.removesuffix("s"))


def drain_of(kind: str) -> float:
    """Return the seconds that something of a kind may need to settle what it has in hand."""
    if kind == "push":
        return push.PATIENCE
    return float(runpy.run_path(str(KUBERNETES / "worker.py"))["DRAIN_TIMEOUT"])


def pod(name: str) -> Any:
    """Return the pod's part of a deployment."""
    return DEPLOYMENTS[name]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", ["1.32", ""], ids=["1.32", "newest"])
@pytest.mark.parametrize(
    "document",
    [pytest.param(document, id=name) for name, document in DOCUMENTS.items()],
)
def test_kubernetes_takes_it(document: Any, version: str) -> None:
    """By the schemas of its REST API, which refuse unknown fields."""
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(document, version or validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pods_have_no_more_rights_than_they_need(name: str) -> None:
    """Which the strictest standard of Kubernetes demands; and memory has a limit."""
    (container,) = pod(name)["containers"]
    assert pod(name)["securityContext"]["runAsNonRoot"]
    assert {"type": "RuntimeDefault"} == pod(name)["securityContext"]["seccompProfile"]
    assert not pod(name)["automountServiceAccountToken"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert ["ALL"] == rights["capabilities"]["drop"]
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_probes_ask_for_pages_that_there_are(name: str) -> None:
    """At a port that the container has."""
    (container,) = pod(name)["containers"]
    ports = {each["name"] for each in container["ports"]}
    asked = [container[f"{each}Probe"]["httpGet"] for each in ("startup", "liveness", "readiness")]
    assert {"/livez", "/readyz"} == {each["path"] for each in asked}
    assert ports >= {each["port"] for each in asked}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_an_eviction_leaves_some(name: str) -> None:
    """The budget names the pods of the deployment, of which there are several."""
    budget = DOCUMENTS[f"{name}-PodDisruptionBudget"]["spec"]
    template = DEPLOYMENTS[name]["spec"]["template"]["metadata"]
    assert budget["selector"]["matchLabels"].items() <= template["labels"].items()
    assert DEPLOYMENTS[name]["spec"]["replicas"] > budget["maxUnavailable"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_there_is_time_to_drain(name: str) -> None:
    """In Kubernetes and in compose: more than the code takes by itself."""
    least = drain_of(name) + CLOSING
    assert pod(name)["terminationGracePeriodSeconds"] >= least
    service = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"][name]
    assert seconds(service["stop_grace_period"]) >= least


def test_the_worker_drains_as_long_as_by_default() -> None:
    """So its manifest also fits a worker that says nothing."""
    default = inspect.signature(pr.Subscriber.run).parameters["timeout"].default
    assert default == drain_of("worker")


def commands() -> list[tuple[str, list[str]]]:
    """Return the arguments of the command in manifests and in the compose file."""
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    found = [
        (f"compose-{n}", each["command"])
        for n, each in services.items()
        if "entrypoint" not in each
    ]
    found = [each for each in found if isinstance(each[1], list)]
    for name in DEPLOYMENTS:
        (container,) = pod(name)["containers"]
        found += [(name, container["args"])] if "args" in container else []
    return found


@pytest.mark.parametrize(
    "arguments", [pytest.param(arguments, id=name) for name, arguments in commands()]
)
def test_the_command_takes_the_arguments(arguments: list[str]) -> None:
    """A misspelt option would be seen only when the container starts."""
    verb, *rest = arguments
    command = importlib.import_module(f"pulsar_retry.cli.{verb}").command
    if isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    assert command.make_context(verb, list(rest))
