"""Fixtures for every test that touches a broker: one broker a session, fresh names a test.

Which broker it is, is decided by `pulsar_retry.testing.broker`; the header of the run says which,
and why it is not a container. Under pytest-xdist the controller starts it and the workers share it.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from http import HTTPMethod, HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone import Standalone
from pulsar_retry.standalone.config import Setting
from pulsar_retry.testing.broker import (
    BrokerChoice,
    RunningBroker,
    find_broker,
    running_broker,
)
from support.brokers.hostile import HOSTILE

#: The rows of the fault table, which tests of several folders enter, and Hypothesis's profiles.
pytest_plugins = ("support.compatibility", "support.profiles", "support.faults.reliability")

CHOICE = pytest.StashKey[BrokerChoice]()
STACK = pytest.StashKey[ExitStack]()
SHARED = pytest.StashKey[RunningBroker]()


def _choice(config: pytest.Config) -> BrokerChoice:
    """Decide once in a run, and once for all its workers."""
    if CHOICE not in config.stash:
        config.stash[CHOICE] = find_broker()
    return config.stash[CHOICE]


def _start_broker(config: pytest.Config) -> RunningBroker:
    """Start the run's broker, or return the one that runs; `pytest_unconfigure` stops it."""
    if SHARED not in config.stash:
        stack = config.stash[STACK] = ExitStack()
        config.stash[SHARED] = stack.enter_context(
            running_broker(_choice(config), settings=_profile(config))
        )
    return config.stash[SHARED]


def _profile(config: pytest.Config) -> Mapping[str, Setting]:
    """Return the settings of the run's broker: a user's, unless the run asks for a kind one."""
    return {} if config.getoption("kind_broker") else HOSTILE


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let benchmarks choose their broker, unit tests have none, and each night have more tests."""
    parser.addoption(
        "--kind-broker",
        action="store_true",
        help="run on the settings of `pulsar-retry standalone`, not on Pulsar's own defaults",
    )
    parser.addoption(
        "--no-broker",
        action="store_true",
        help="with pytest-xdist, whose controller cannot tell: no test needs a broker",
    )
    parser.addoption("--nightly", action="store_true", help="run the tests of each night, too")


def _which_broker(config: pytest.Config) -> list[str]:
    """Say which broker the tests get, and why it is not a container."""
    choice = _choice(config)
    profile = "kind" if config.getoption("kind_broker") else "hostile"
    if choice.kind == "environment":
        profile = "as it is"
    lines = [f"broker: {choice.kind}, {profile}"]
    if choice.why_no_container:
        lines.append(f"container tests skipped, because {choice.why_no_container}")
    return lines


def _is_shared(config: pytest.Config) -> bool:
    """Tell whether workers of pytest-xdist share a broker, which the controller starts."""
    return bool(config.getoption("numprocesses", None)) and not config.getoption("no_broker")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the broker at once under pytest-xdist, whose controller collects nothing."""
    return _which_broker(config) if _is_shared(config) else []


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Name the broker if any test needs one: a run of unit tests must not even look for it."""
    needed = any(item.get_closest_marker("broker") for item in items)
    return _which_broker(config) if needed else []


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the controller's broker to a worker of pytest-xdist."""
    if not _is_shared(node.config):
        return
    broker = _start_broker(node.config)
    node.workerinput["broker"] = (broker.kind, broker.service_url, broker.admin_url)
    node.workerinput["why_no_container"] = _choice(node.config).why_no_container


def pytest_configure(config: pytest.Config) -> None:
    """Take over, in a worker of pytest-xdist, what the controller found and started."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell; tests and the programs they start interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker_input = getattr(config, "workerinput", {})
    if "broker" in worker_input:
        kind, service_url, admin_url = worker_input["broker"]
        config.stash[CHOICE] = BrokerChoice(kind, worker_input["why_no_container"])
        # No restart and no kill: the other workers use it, too.
        config.stash[SHARED] = RunningBroker(kind, service_url, admin_url)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the broker if this process started it."""
    if STACK in config.stash:
        config.stash[STACK].close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that use the broker; skip those of each night, unless they are asked for."""
    by_day = pytest.mark.skip(reason="skipped, because it takes long: --nightly runs it")
    for item in items:
        if item.get_closest_marker("nightly") and not config.getoption("nightly"):
            item.add_marker(by_day)
        if {"broker", "index_ack_broker", "own_broker"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.broker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of the container path where there is none."""
    if item.get_closest_marker("container"):
        choice = _choice(item.config)
        if choice.kind != "container":
            pytest.skip(f"container tests skipped, because {choice.why_no_container}")


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> RunningBroker:
    """Return the session's broker, which all tests share: use `namespace` and `topic` in it."""
    try:
        return _start_broker(pytestconfig)
    except StandaloneError as error:
        # Once, not for each test: nothing that needs a broker can pass now.
        pytest.exit(f"no broker: {error}", returncode=1)


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Standalone]:
    """Give a broker that no other module uses, to be killed and restarted."""
    with Standalone(fast_start=True, settings=HOSTILE) as standalone:
        yield standalone


@pytest.fixture(scope="module")
def guarded() -> Iterator[Standalone]:
    """Give the tests of a module a broker that lets nobody in without a token."""
    with Standalone(fast_start=True, auth=True, settings=HOSTILE) as broker:
        yield broker


@pytest.fixture(scope="session")
def index_ack_broker() -> Iterator[Standalone]:
    """Give a broker that acknowledges messages within batches, for tests of just that."""
    settings = {**HOSTILE, "acknowledgmentAtBatchIndexLevelEnabled": True}
    with Standalone(fast_start=True, settings=settings) as standalone:
        yield standalone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give a cluster of several processes, with tokens and TLS, which tests may break and mend."""
    from support.brokers.clusters import is_required, running_cluster  # noqa: PLC0415 - for few runs

    with ExitStack() as stack:
        try:
            found = stack.enter_context(running_cluster(tmp_path_factory.mktemp("cluster")))
        except StandaloneError as error:
            if is_required():
                raise
            pytest.skip(f"cluster tests skipped, because {error}")
        yield found


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pr.Client]:
    """Give a client of the session's broker, as an application has it."""
    with pr.Client(
        broker.service_url,
        # The first topic of a namespace takes a busy broker long: its policies have a topic too.
        operation_timeout_seconds=90,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    ) as client:
        yield client


@attrs.frozen
class Admin:
    """Pulsar's REST API, as far as tests use it. Topics are full names, `persistent://…`."""

    url: str

    def call(self, method: HTTPMethod, path: str, body: object = None) -> Any:
        """Send *body* as JSON to /admin/v2/*path* and return the JSON answer, or None."""
        request = urllib.request.Request(  # noqa: S310 - the test's broker
            f"{self.url}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        # No proxy that the environment names leads to loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=90) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                error.add_note(f"{method} {path}: {error.read().decode(errors='replace')}")
                raise
        return json.loads(content) if content else None

    def get(self, path: str) -> Any:
        """GET /admin/v2/*path*."""
        return self.call(HTTPMethod.GET, path)

    def create_namespace(self, name: str) -> None:
        """Create the namespace *name*, `tenant/namespace`."""
        self.call(HTTPMethod.PUT, f"namespaces/{name}")

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace with all that is in it."""
        self.call(HTTPMethod.DELETE, f"namespaces/{name}?force=true")

    def set_namespace_policy(self, namespace: str, policy: str, value: object) -> None:
        """Set a policy by its path, such as `retention` or `backlogQuota`."""
        self.call(HTTPMethod.POST, f"namespaces/{namespace}/{policy}", value)

    def topics(self, namespace: str) -> list[str]:
        """Return the full names of the namespace's topics, with partitions one by one."""
        names: list[str] = self.get(f"persistent/{namespace}")
        return sorted(each for each in names if not each.endswith("/__change_events"))  # until 2.9

    def create_topic(self, topic: str) -> None:
        """Create a topic that is not partitioned, and has no subscription.

        It stays for some minutes; see `keep_unused`.
        """
        self.keep_unused(topic.removeprefix("persistent://").rpartition("/")[0])
        self.call(HTTPMethod.PUT, _path(topic))

    def keep_unused(self, namespace: str) -> None:
        """Have the broker keep topics that nobody uses and that have no subscription.

        `HOSTILE` leaves them two seconds, in which a test on a busy machine cannot use them.
        """
        policies = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 300,
            "deleteWhileInactive": True,
        }
        self.set_namespace_policy(namespace, "inactiveTopicPolicies", policies)

    def published(self, topic: str) -> int:
        """Return how many messages a topic has got since it was made; 0 if it is not there."""
        try:
            count: int = self.stats(topic)["msgInCounter"]
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return 0
        return count

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic of *partitions* partitions."""
        self.call(HTTPMethod.PUT, f"{_path(topic)}/partitions", partitions)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0: not partitioned."""
        count: int = self.get(f"{_path(topic)}/partitions")["partitions"]
        return count

    def stats(self, topic: str) -> dict[str, Any]:
        """Return the statistics of a topic or of one partition."""
        stats: dict[str, Any] = self.get(f"{_path(topic)}/stats?getPreciseBacklog=true")
        return stats

    def backlog(self, topic: str, subscription: str) -> int:
        """Return how many messages the subscription has not acknowledged."""
        backlog: int = self.stats(topic)["subscriptions"][subscription]["msgBacklog"]
        return backlog

    def has_stored_acks(self, topic: str, subscription: str) -> bool:
        """Tell whether acknowledgements outlive an unload of *topic*.

        The first one is counted in memory at once, and written when the cursor has a ledger.
        """
        cursors = self.get(f"{_path(topic)}/internalStats")["cursors"]
        return bool(cursors[subscription]["state"] == "Open")

    def set_topic_policy(self, topic: str, policy: str, value: object) -> None:
        """Set a policy by its path, such as `maxProducers` or `maxMessageSize`."""
        self.call(HTTPMethod.POST, f"{_path(topic)}/{policy}", value)

    def unload(self, topic: str) -> None:
        """Unload a topic: its clients are disconnected, and the next use loads it again."""
        self.call(HTTPMethod.PUT, f"{_path(topic)}/unload")

    def terminate(self, topic: str) -> None:
        """End a topic: what is in it can be read, nothing more can be published."""
        self.call(HTTPMethod.POST, f"{_path(topic)}/terminate")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and disconnect its clients."""
        self.call(HTTPMethod.DELETE, f"{_path(topic)}?force=true")


def _path(topic: str) -> str:
    domain, _, name = topic.partition("://")
    return f"{domain}/{name}"


@pytest.fixture(scope="module")
def admin(broker: RunningBroker) -> Admin:
    """Return the broker's REST API; a module may have a `broker` of its own."""
    return Admin(broker.admin_url)


@pytest.fixture
def proxy(broker: RunningBroker) -> Iterator[Any]:
    """Give what stands between the broker and the clients that connect to it."""
    from support.brokers.proxy import Proxy  # noqa: PLC0415 - for few tests

    url = urlsplit(broker.service_url)
    with Proxy(url.hostname, url.port) as proxy:
        yield proxy


@pytest.fixture
def namespace(admin: Admin) -> Iterator[str]:
    """Give a new namespace, `public/<uuid>`, and delete it afterwards with all that is in it."""
    name = f"public/{uuid.uuid4().hex}"
    admin.create_namespace(name)
    yield name
    # What a test left open, and a broker that it left broken, are that test's failure alone.
    with suppress(OSError):
        admin.delete_namespace(name)


@pytest.fixture
def topic(namespace: str) -> str:
    """Return the full name of a topic that does not exist yet."""
    return f"persistent://{namespace}/{uuid.uuid4().hex}"
