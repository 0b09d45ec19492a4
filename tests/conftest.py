"""Fixtures for every test that touches a broker: one broker a session, fresh names a test.

Which broker it is, is decided by `pulsar_retry.testing.broker`; the header of the run says which,
and why it is not a container. Under pytest-xdist the controller starts it and the workers share it.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

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
from support.brokers.admin import ADMINS, Admin
from support.brokers.hostile import HOSTILE
from support.waiting import eventually

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what is not UTF-8 in captured logs: pytest-xdist cannot send it."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


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
        broker = _start_broker(pytestconfig)
        ADMINS[broker.service_url] = Admin(broker.admin_url)
    except StandaloneError as error:
        # Once, not for each test: nothing that needs a broker can pass now.
        pytest.exit(f"no broker: {error}", returncode=1)
    return broker


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Standalone]:
    """Give a broker that no other module uses, to be killed and restarted."""
    with Standalone(fast_start=True, settings=HOSTILE) as standalone:
        ADMINS[standalone.service_url] = Admin(standalone.admin_url)
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
        ADMINS[standalone.service_url] = Admin(standalone.admin_url)
        yield standalone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give a cluster of several processes, with tokens and TLS, which tests may break and mend."""
    from support.brokers.clusters import is_required, running_cluster

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


@pytest.fixture(scope="module")
def admin(broker: RunningBroker) -> Admin:
    """Return the broker's REST API; a module may have a `broker` of its own."""
    return Admin(broker.admin_url)


@pytest.fixture
def proxy(broker: RunningBroker) -> Iterator[Any]:
    """Give what stands between the broker and the clients that connect to it."""
    from support.brokers.proxy import Proxy

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
def swept(client: pr.Client, admin: Admin, namespace: str) -> Callable[[], None]:
    """Return a function that has the broker delete what nobody uses in the namespace, and waits.

    It waits for nothing where the broker deletes no such topics.
    """

    def swept() -> None:
        runtime = admin.get("brokers/configuration/runtime")
        if runtime["brokerDeleteInactiveTopicsEnabled"] == "true":
            admin.delete_unused(namespace, after=1)
            canary = f"persistent://{namespace}/{uuid.uuid4().hex}"
            client.create_producer(canary).close()
            eventually(lambda: canary not in admin.topics(namespace))

    return swept


@pytest.fixture
def topic(namespace: str) -> str:
    """Return the full name of a topic that does not exist yet."""
    return f"persistent://{namespace}/{uuid.uuid4().hex}"
