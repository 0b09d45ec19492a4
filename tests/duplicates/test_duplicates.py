"""How many messages each client runs more than once, put through the same faults.

CI does not run it: `tox -e soak -- tests/duplicates`, and `--write-reliability` writes the table of
docs/reliability.md.
"""

from __future__ import annotations

import statistics
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from urllib.parse import urlsplit

import pytest

from support.brokers.proxy import Proxy
from support.faults import reliability
from support.faults.balancing import Stage
from support.faults.handing import publish
from support.faults.ledger import Ledger
from support.interop.programs import PEERS, java_program, running
from support.reading import SUBSCRIPTION
from support.waiting import eventually

CLIENTS = ("Java", "pulsar.Client", "pr.Client", "pr.Client.subscriber")

#: Messages for each strike, and how many of them are handled before; one in `FAILS` fails once.
COUNT, BEFORE, FAILS = 1_000, 300, 10
#: Of each client: at most 250 messages a second, so that a machine of two cores has time for all.
THREADS, WORK_MS, DELAY_MS = 10, 40, 1_000
STRIKES, ROUNDS = 3, 3

BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"

queues = pytest.mark.parametrize("queue", [1000, 10])


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Give the clients' programs, each running."""
    folders = {name: tmp_path_factory.mktemp("client") for name in CLIENTS}
    commands = {
        name: java_program("Worker.java", "-", folder, fast_start=False)
        if name == "Java"
        else [sys.executable, PEERS / "worker.py", name]
        for name, folder in folders.items()
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running(commands[name], folders[name])) for name in CLIENTS
        }


@pytest.fixture(scope="module")
def rows(pytestconfig):
    """Collect the rows of the table, and write it at the end if that is wanted."""
    rows = {}
    yield rows
    if pytestconfig.getoption("--write-reliability"):
        text = reliability.PAGE.read_text("utf-8")
        head, _, rest = text.partition(BEGIN)
        old, _, tail = rest.partition(END)
        before = {tuple(line.split(" | ")[:2]): line for line in old.strip().splitlines()[2:]}
        lines = (before | rows).values()
        columns = ("| Fault", "Queue", *(f"`{name}`" for name in CLIENTS))
        table = "\n".join([f"{' | '.join(columns)} |", "| --- " * len(columns) + "|", *lines])
        reliability.PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", "utf-8")


@pytest.fixture
def compare(programs, rows, tmp_path):
    """Return a function that makes a row."""

    def compare(fault, queue, urls, stage_of, strikes):
        found = {name: [] for name in CLIENTS}
        for _ in range(ROUNDS):
            stages = {
                name: stage_of(uuid.uuid4().hex, Ledger(tmp_path / uuid.uuid4().hex))
                for name in CLIENTS
            }
            for name, repeated in again(programs, stages, urls, queue, strikes).items():
                found[name].append(repeated)
            print(fault, queue, found, flush=True)  # noqa: T201 - it takes minutes
        cells = [
            f"{statistics.median(each):.0f} ({min(each)}-{max(each)})" for each in found.values()
        ]
        key = (f"| {fault}, of {COUNT * len(strikes):,} messages", str(queue))
        rows[key] = " | ".join([*key, *cells]) + " |"

    return compare


def again(programs, stages, urls, queue, strikes):
    """Let all clients work at once, each on its own topic; return how many runs were too many."""
    for stage in stages.values():
        publish(stage.client, stage.topic, stage.ledger, 0)
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        courses = {
            name: pool.submit(
                course, name, programs[name], stages[name], urls[name], queue, strikes
            )
            for name in CLIENTS
        }
    return {name: each.result() for name, each in courses.items()}


def course(name, program, stage, url, queue, strikes):
    """Let a client work, and strike while it does; return how many of its runs were too many."""
    program.call(
        "work",
        url=url,
        topic=stage.topic,
        subscription=SUBSCRIPTION,
        ledger=str(stage.ledger.path),
        queue=queue,
        threads=THREADS,
        work_ms=WORK_MS,
        fails=FAILS,
        delay_ms=DELAY_MS,
    )
    for strike in strikes:
        publish(stage.client, stage.topic, stage.ledger, COUNT)
        eventually(lambda: len(stage.ledger.open()) <= COUNT - BEFORE)
        strike(name, stage.topic)
        eventually(lambda: not stage.ledger.open() and stage.is_drained())
    program.call("rest")
    account = stage.ledger.account()
    assert COUNT * len(strikes) == account.sent
    assert not account.lost
    return account.deliveries - account.sent - account.sent // FAILS


@queues
@pytest.mark.parametrize("fault", ["topic unloaded", "connection cut"])
def test_one_broker(broker, admin, client, namespace, compare, fault, queue):
    """What an operator does, or a network."""
    address = urlsplit(broker.service_url)

    def stage_of(name, ledger):
        topic = f"persistent://{namespace}/{name}"
        return Stage(broker.service_url, admin, client, topic, ledger)

    with ExitStack() as stack:
        proxies = {
            name: stack.enter_context(Proxy(address.hostname, address.port)) for name in CLIENTS
        }

        def strike(name, topic):
            if fault == "connection cut":
                proxies[name].cut()
            else:
                admin.unload(topic)

        urls = {name: proxy.url for name, proxy in proxies.items()}
        compare(f"{fault} {STRIKES} times", queue, urls, stage_of, [strike] * STRIKES)


@queues
def test_rolling_restart(cluster, compare, queue):
    """Each of two brokers is stopped in order, and started; the other one takes over."""
    namespace = f"public/{uuid.uuid4().hex}"
    cluster.call("PUT", f"namespaces/{namespace}")

    def stage_of(name, ledger):
        topic = f"persistent://{namespace}/{name}"
        return Stage(cluster.it.service_url, cluster, client, topic, ledger)

    def restart(broker):
        together = Barrier(len(CLIENTS), broker.restart, timeout=600)
        return lambda _name, _topic: together.wait()

    with cluster.client(operation_timeout_seconds=90) as client:
        strikes = [restart(broker) for broker in cluster.it.brokers]
        fault = "two brokers restarted, one after the other"
        compare(fault, queue, dict.fromkeys(CLIENTS, cluster.it.service_url), stage_of, strikes)
