"""In every combination of features and faults, nothing is lost and no attempt is wasted.

A cell is one combination. Every possible pair of values occurs in at least one cell. Each cell has
a separate process, which works on good messages, one that fails once and one that always fails,
while the cell's fault happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pulsar
import pytest

from pulsar_retry.native.loading import VARIABLE
from support.appended import whole_lines
from support.encrypting import key_files
from support.matrix import cell_worker
from support.matrix.cell_worker import KEY, RETRIES, schema
from support.matrix.cells import AXES, SENSELESS, Cell, pairwise
from support.reading import SUBSCRIPTION
from support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="skipped, because it reads /proc"),
]

#: The limit of producers per topic while letters are refused. The test opens that many itself.
PLACES = 3

#: Seconds to wait for a condition, on a busy machine.
SOON = 100.0

#: Seconds for which letters are refused.
REFUSED = 3.0

#: At most so many hand-offs may fail meanwhile, because the delays between them grow.
MOST_UNSETTLED = 40


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the files of a public key and of a private key."""
    return key_files(tmp_path_factory.mktemp("keys"))


def usage(pid: int) -> tuple[int, int]:
    """Return how many threads and sockets a process has, from /proc."""
    folder, sockets = Path(f"/proc/{pid}"), 0
    for file in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets += str(file.readlink()).startswith("socket:")
    return len(list((folder / "task").iterdir())), sockets


@attrs.define
class Table:
    """One cell, its topics and its workers."""

    cell: Cell
    broker: Any
    admin: Any
    client: Any
    namespace: str
    folder: Path
    keys: list[str]
    processes: list[subprocess.Popen[bytes]] = attrs.Factory(list)

    @property
    def topics(self) -> list[str]:
        """The topics that messages are published to."""
        one = f"persistent://{self.namespace}/in"
        return [f"{one}-a", f"{one}-b"] if self.cell.topics in {"list", "pattern"} else [one]

    @property
    def subscribed(self) -> Any:
        """The topic argument of `subscribe`."""
        if self.cell.topics == "pattern":
            return f"persistent://{self.namespace}/in-."
        return self.topics if self.cell.topics == "list" else self.topics[0]

    @property
    def sources(self) -> list[str]:
        """The topics with messages; each partition is one topic."""
        if self.cell.topics == "partitioned":
            return [f"{self.topics[0]}-partition-{number}" for number in range(2)]
        return self.topics

    @property
    def letter_topics(self) -> list[str]:
        """The topics that refuse letters."""
        suffix = "RETRY" if self.cell.fault == "retry refuses" else "DLQ"
        names = self.sources if not self.cell.by_letters else self.topics[:1]
        if self.cell.is_managed:
            names = self.topics[:1]
        return [f"{name}-{SUBSCRIPTION}-{suffix}" for name in names]

    @property
    def redelivers_more(self) -> bool:
        """Whether pulsar-client or the broker also redelivers messages that have not failed."""
        return (
            self.cell.fault in {"kill", "unload"}
            # A nack redelivers all unacknowledged messages, or the whole batch.
            or (self.cell.kind in {"Exclusive", "Failover"} and not self.cell.is_managed)
            or (self.cell.form == "batched" and not self.cell.by_letters)
        )

    @property
    def path(self) -> Path:
        """The file of the ledger."""
        return self.folder / "ledger"

    def lines(self) -> list[str]:
        """Return the lines that the workers wrote."""
        return whole_lines(self.path)

    def runs(self) -> Counter[str]:
        """Return how often each message was handled."""
        return Counter(line[4:] for line in self.lines() if line.startswith("run "))

    def start(self) -> None:
        """Start a worker."""
        number = len(self.processes)
        job = {
            "cell": attrs.asdict(self.cell),
            "url": self.broker.service_url,
            "topic": self.subscribed,
            "neighbour": f"persistent://{self.namespace}/neighbour-{number}",
            "path": str(self.path),
            "keys": self.keys,
        }
        command = [sys.executable, cell_worker.__file__, json.dumps(job)]
        env = {**os.environ, VARIABLE: "0" if self.cell.path == "Python" else "1"}
        with (self.folder / f"worker-{number}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for *condition*; fail if the worker ends first."""
        eventually(lambda: self.processes[-1].poll() is not None or condition(), SOON)
        assert self.processes[-1].poll() is None, "the worker has ended"

    def kill(self) -> None:
        """Kill the last worker."""
        self.processes[-1].kill()
        self.processes[-1].wait()

    def names(self, topic: str) -> list[str]:
        """Return the names of the messages of a topic."""
        good = 1 if self.cell.form == "chunked" else 5
        kinds = ["poison", "once", *(f"good{number}" for number in range(good))]
        return [f"{kind}-{self.topics.index(topic)}" for kind in kinds]

    @property
    def poison(self) -> set[str]:
        """The names of the messages that always fail."""
        return {self.names(topic)[0] for topic in self.topics}

    def publish(self) -> None:
        """Publish messages to each topic."""
        form = self.cell.form
        options: dict[str, Any] = {}
        if form == "batched":
            options = {"batching_enabled": True, "batching_max_publish_delay_ms": 500}
            if "Shared" in self.cell.kind or self.cell.kind == "sticky":
                options["batching_type"] = pulsar.BatchingType.KeyBased
        elif form == "chunked":
            options = {"chunking_enabled": True}
        elif form == "compressed":
            options = {"compression_type": pulsar.CompressionType.ZSTD}
        elif form == "avro":
            options = {"schema": schema(evolved=False)}
        elif form == "encrypted":
            reader = pulsar.CryptoKeyReader(*self.keys)
            options = {"encryption_key": KEY, "crypto_key_reader": reader}
        for topic in self.topics:
            producer = self.client.create_producer(topic, **options)
            for name in self.names(topic):
                key = {"partition_key": name} if form == "keyed" else {}
                producer.send_async(
                    self.content(name), lambda *_: None, properties={"name": name}, **key
                )
            producer.flush()
            producer.close()

    def content(self, name: str) -> Any:
        """Return the content of a message."""
        if self.cell.form == "null":
            return None
        if self.cell.form == "avro":
            return {"item": name}
        if self.cell.form == "chunked":
            return name.encode() * (6_000_000 // len(name))
        return name.encode()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Let the topics of letters refuse producers."""
        with contextlib.ExitStack() as places:
            for topic in self.letter_topics:
                for _ in range(PLACES):
                    places.callback(self.occupy(topic).close)
            self.admin.set_namespace_policy(self.namespace, "maxProducersPerTopic", PLACES)
            eventually(lambda: not self.takes_producers(), SOON)
            yield

    def occupy(self, topic: str) -> Any:
        """Return a producer of the letter topic *topic*."""
        options = {"schema": schema(evolved=False)} if self.cell.form == "avro" else {}
        return self.client.create_producer(topic, **options)

    def takes_producers(self) -> bool:
        """Return whether a topic of letters accepts one more producer."""
        try:
            self.occupy(self.letter_topics[-1]).close()
        except pulsar.PulsarException:
            return False
        return True

    def is_drained(self) -> bool:
        """Return whether all poison messages are dead letters, and all others are settled."""
        try:
            retries = [f"{self.topics[0]}-{SUBSCRIPTION}-RETRY"] if self.cell.by_letters else []
            left = sum(self.admin.backlog(each, SUBSCRIPTION) for each in self.sources + retries)
        except (OSError, KeyError):
            return False
        return left == 0 and len(self.dead()) >= len(self.topics)

    def dead(self) -> list[Any]:
        """Return the dead letters."""
        options: dict[str, Any] = {}
        if self.cell.form == "encrypted":
            options["crypto_key_reader"] = pulsar.CryptoKeyReader(*self.keys)
        found = []
        for topic in self.admin.topics(self.namespace):
            if "-DLQ" in topic:
                reader = self.client.create_reader(topic, pulsar.MessageId.earliest, **options)
                while reader.has_message_available():
                    found.append(reader.read_next(60_000))
                reader.close()
        return found


@pytest.fixture
def table(cell, broker, admin, client, namespace, tmp_path, keys) -> Iterator[Table]:
    """Give the topics of a cell, which exist; stop its workers later."""
    table = Table(cell, broker, admin, client, namespace, tmp_path, keys)
    for topic in table.topics:
        if cell.topics == "partitioned":
            admin.create_partitioned_topic(topic, 2)
        else:
            admin.create_topic(topic)
    yield table
    for process in table.processes:
        process.kill()
        process.wait()
    for log in sorted(tmp_path.glob("*.log")):
        sys.stdout.write(log.read_text(errors="replace")[-5000:])
    sys.stdout.write("\n".join(table.lines()))


@pytest.mark.parametrize("cell", pairwise(), ids=str)
def test_a_cell(cell: Cell, table: Table) -> None:
    """Every message is handled or becomes a dead letter, and no other consumer is disturbed."""
    refuses = cell.fault.endswith("refuses")
    with table.refusing() if refuses else contextlib.nullcontext():
        table.publish()
        table.start()
        attempts = RETRIES + 1 if cell.fault == "dlq refuses" else 1
        table.wait(lambda: all(table.runs()[name] >= attempts for name in table.poison))
        before = usage(table.processes[-1].pid)
        if refuses:
            time.sleep(REFUSED)
    if cell.fault == "kill":
        table.kill()
        table.start()
    elif cell.fault == "unload":
        for topic in table.sources:
            table.admin.unload(topic)
    table.wait(table.is_drained)
    if refuses:  # each refused letter may have needed something of its own
        table.wait(lambda: has_no_more(table.processes[-1].pid, before))
    check(table)


def has_no_more(pid: int, before: tuple[int, int]) -> bool:
    """Tell whether a process has few more threads and sockets than it had."""
    threads, sockets = usage(pid)
    return threads <= before[0] + 4 and sockets <= before[1] + 2


def check(table: Table) -> None:
    """Check that each message has ended as it should."""
    cell, runs, dead, lines = table.cell, table.runs(), table.dead(), table.lines()
    names = {name for topic in table.topics for name in table.names(topic)}
    assert set(runs) == names
    assert "neighbour" not in lines
    assert {each.properties()["name"] for each in dead} == table.poison
    for each in dead:
        if cell.form != "avro":
            assert each.data() == (table.content(each.properties()["name"]) or b"")
        assert each.has_null_value() == (cell.form == "null")
        if cell.by_letters and not cell.is_managed:
            assert each.properties()["RECONSUMETIMES"] == str(RETRIES + 1)

    # After a failed hand-off, the application handles the message once more.
    unsettled = sum(line.startswith("unsettled") for line in lines)
    assert unsettled <= MOST_UNSETTLED
    assert not (cell.is_managed and unsettled)
    for name, count in runs.items():
        needed = RETRIES + 1 if name in table.poison else 2 if name.startswith("once") else 1
        assert count >= needed, name
        if not table.redelivers_more:
            assert count <= needed + unsettled, name
    if not table.redelivers_more:
        assert len(dead) == len(table.poison)


def test_what_is_left_out_says_why() -> None:
    """Each pair that is not tested has a reason, and each value is tested."""
    assert all(SENSELESS.values())
    for name in attrs.fields_dict(Cell):
        assert {getattr(cell, name) for cell in pairwise()} == set(AXES[name])
