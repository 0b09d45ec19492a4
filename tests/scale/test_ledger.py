"""A ledger while everything fails, of many rows: `tox -e spark-scale -- --rows 10000000`.

Rows are streamed in tenths. The records are compared with a count of what is in the topics and in
the files, which is made without Spark and without the code of this package.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsar_retry.standalone import Standalone
from pulsar_retry_spark import BatchRecord, read_ledger
from support.brokers.hostile import HOSTILE
from support.spark.cluster import Cluster
from support.spark.streaming import DEAD, DROPPED, FILES, RETRIED, RULES
from support.spark.watching import tree

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc"),
    pytest.mark.timeout(0),
]

TOPIC, SUBSCRIPTION = "persistent://public/default/scale", "billing"
RETRY, DLQ = (f"{TOPIC}-{SUBSCRIPTION}-{kind}" for kind in ("RETRY", "DLQ"))
TENTHS = 10
BATCHES = 5  # micro-batches of a tenth
TIMES = 3  # how often a fault happens in a tenth, if it lasts long enough
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: What kind of process it is in whose command this is.
KINDS = {
    "pyspark.daemon": "worker",
    "CoarseGrainedExecutorBackend": "executor's JVM",
    "SparkSubmit": "driver's JVM",
}

#: Seconds that a tenth may take at most, besides a millisecond for each row.
PATIENCE = 900
#: How much more memory a process may hold in the last tenth than in the second one.
GROWTH, ROOM = 1.1, 16 << 20


def say(what: object) -> None:
    """Print a line at once."""
    print(what, flush=True)  # noqa: T201 - a long run is watched


@attrs.define
class Run:
    """A stream that runs in another process, on a cluster.

    Attributes:
        held: By number of the tenth, the most bytes that one process of a kind has held.
    """

    folder: Path
    broker: Standalone
    cluster: Cluster
    rows: int
    held: dict[int, Counter[str]] = attrs.field(factory=lambda: defaultdict(Counter))
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the driver."""
        program = "from support.spark.streaming import main; main()"
        command = [sys.executable, "-c", program, str(self.folder)]
        path = os.pathsep.join(each for each in sys.path if each)
        environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(self.folder)}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)

    def stop(self) -> None:
        """Let the driver end by itself."""
        (self.folder / "stop").touch()
        assert 0 == self.process.wait(120)

    def kill(self, group: int = signal.SIGKILL) -> None:
        """Kill the driver, its JVM too."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, group)
        self.process.wait()

    def records(self, *, all_attempts: bool = False) -> list[BatchRecord]:
        """Return the records."""
        return read_ledger(str(self.folder / "ledger"), all_attempts=all_attempts)

    def done(self) -> int:
        """Return how many rows are in records of runs that are done."""
        return sum(each.rows_in for each in self.records() if each.state == "done")

    def put(self, tenth: int) -> int:
        """Write the files of a tenth; return the number of rows that there are now."""
        files = TENTHS * BATCHES * FILES
        for number in range(tenth * BATCHES * FILES, (tenth + 1) * BATCHES * FILES):
            ids = np.arange(self.rows * number // files, self.rows * (number + 1) // files)
            table = pa.table({"id": ids, "name": [f"name-{i}" for i in ids]})
            hidden = self.folder / "in" / f".{number:06d}.parquet"
            pq.write_table(table, hidden)
            hidden.rename(hidden.with_name(hidden.name[1:]))
        return self.rows * (tenth + 1) // TENTHS

    def play(self, tenth: int, fault: Callable[[Run], None] | None, name: str) -> None:
        """Stream a tenth of the rows; cause the fault again and again meanwhile."""
        (self.folder / "fault").write_text(name)
        end, begun = self.put(tenth), time.monotonic()
        due: float | None = begun + random.uniform(0, 4)  # noqa: S311
        before = times = 0
        while (done := self.done()) < end:
            now = time.monotonic()
            assert now < begun + PATIENCE + self.rows / 1000, "a tenth does not end"
            assert self.process.poll() is None, "the driver has ended"
            self.look(tenth)
            if due is None and done > before and times < TIMES:  # a micro-batch was done since
                due = now + random.uniform(0, 4)  # noqa: S311
            if fault is not None and due is not None and due < now:
                fault(self)
                before, due, times = done, None, times + 1
            time.sleep(0.3)
        took = time.monotonic() - begun
        say(f"{name or 'nothing':10} {times} times, {end:>10} rows, {took:6.1f} s")

    def look(self, tenth: int) -> None:
        """Note what the processes hold."""
        for pid, command in self.processes():
            kind = next((kind for part, kind in KINDS.items() if part in command), "")
            kind = "driver" if pid == self.process.pid else kind
            with suppress(OSError):  # it has ended
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                held = pages * os.sysconf("SC_PAGE_SIZE")
                self.held[tenth][kind] = max(self.held[tenth][kind], held)

    def processes(self) -> Iterator[tuple[int, str]]:
        """Yield the processes of driver and executors, each with its command."""
        for root in (self.process.pid, *self.cluster.workers):
            for pid in tree(root):
                with suppress(OSError):
                    yield pid, Path(f"/proc/{pid}/cmdline").read_bytes().decode()

    def kill_some(self, part: str) -> None:
        """Kill the processes in whose command *part* is, except those of the driver."""
        mine = set(tree(self.process.pid))
        for pid, command in list(self.processes()):
            if part in command and pid not in mine:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def kill_driver(run: Run) -> None:
    """And start it again."""
    run.kill()
    run.start()


def kill_broker(run: Run) -> None:
    """And start it again."""
    run.broker.kill()
    run.broker.start()


#: The faults, one for each tenth but those that nothing happens in.
FAULTS: list[tuple[str, Callable[[Run], None] | None]] = [
    ("", None),
    ("driver", kill_driver),
    ("executors", lambda run: run.kill_some("CoarseGrained")),
    ("workers", lambda run: run.kill_some("pyspark.daemon")),
    ("tasks", None),
    ("slow", None),
    ("broker", kill_broker),
    ("", None),
    ("workers", lambda run: run.kill_some("pyspark.daemon")),
    ("broker", kill_broker),
]


@contextmanager
def running(folder: Path, rows: int) -> Iterator[Run]:
    """Give a stream with a broker and a cluster of its own."""
    (folder / "in").mkdir()
    (folder / "fault").write_text("")
    with (
        Standalone(heap="1g", direct_memory="1g", settings=HOSTILE) as broker,
        Cluster(folder / "cluster") as cluster,
    ):
        options = {
            "service.url": broker.service_url,
            "topic": TOPIC,
            "subscription": SUBSCRIPTION,
            "compression": "lz4",
            "send.timeout_ms": "240000",  # while the broker starts
            "client.operation_timeout_seconds": "120",
        }
        job = {"options": options, "ledger": str(folder / "ledger"), "master": cluster.url}
        (folder / "job.json").write_text(json.dumps(job))
        run = Run(folder, broker, cluster, rows)
        run.start()
        try:
            yield run
        finally:
            run.kill()


def said(records: list[BatchRecord]) -> dict[str, Any]:
    """Return the sums of the records."""
    dead, dropped = Counter(), Counter()
    for each in records:
        dead.update(each.dead_lettered)
        dropped.update(each.dropped)
    return {
        "rows_in": sum(each.rows_in for each in records),
        "good": sum(each.good for each in records),
        "retried": sum(each.retried for each in records),
        "dead_lettered": dict(dead),
        "dropped": dict(dropped),
    }


def recount(run: Run) -> tuple[dict[str, Any], int]:
    """Count distinct rows in files and topics, and all messages.

    This also checks that each row is where its id belongs, and has one `DEDUPE_ID`.
    """
    good = np.zeros(run.rows, bool)
    files = list((run.folder / "good").glob("batch=*/part-*.parquet"))
    written = 0
    for each in files:
        ids = pq.ParquetFile(each).read(["id"])["id"].to_numpy()
        good[ids], written = True, written + len(ids)
    letters: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    messages = 0
    client = pulsar.Client(run.broker.service_url, logger=QUIET)
    for topic in (RETRY, DLQ):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
        while reader.has_message_available():
            message = reader.read_next(60_000)
            properties, number = message.properties(), int(message.partition_key())
            identity = int(properties["DEDUPE_ID"], 16)
            same = letters[topic, properties["FAILURE_REASON"]].setdefault(number, identity)
            assert same == identity, f"row {number} has two ids"
            messages += 1
        reader.close()
    client.close()
    for (topic, reason), each in letters.items():
        assert {reason} == {RULES.get(number % 10) for number in each}
        assert topic == (RETRY if reason in RETRIED else DLQ)
        assert len(each) == len(set(each.values())), "two rows have one id"
    assert written == good.sum(), "a good row is there twice"
    assert not any(good[digit::10].any() for digit in RULES)
    found = {
        "good": written,
        "retried": len(letters[RETRY, "again"]),
        "dead_lettered": {name: len(letters[DLQ, name]) for name in DEAD},
    }
    return found, messages


def events(run: Run) -> Counter[str]:
    """Return how tasks have ended, and executors, as Spark's own log of events has it."""
    ends: Counter[str] = Counter()
    for path in (run.folder / "events").rglob("events_*"):
        for line in path.read_text().splitlines():
            if '"SparkListenerExecutorRemoved"' in line:
                ends["executor removed"] += 1
            if '"SparkListenerTaskEnd"' not in line:
                continue
            with suppress(json.JSONDecodeError):  # the driver was killed in its middle
                event = json.loads(line)
                why = event["Task End Reason"]["Reason"]
                speculative = event["Task Info"]["Speculative"]
                ends[f"speculative copy: {why}" if speculative else why] += 1
    return ends


def check(run: Run) -> int:
    """Compare the records with the recount; return the number of messages."""
    records = run.records()
    assert {"done"} == {each.state for each in records}
    assert not [each for each in records if not each.balanced]
    by_digit = {name: len(range(digit, run.rows, 10)) for digit, name in RULES.items()}
    sums = said(records)
    say(f"the ledger: {sums}")
    begun = time.monotonic()
    found, messages = recount(run)
    say(f"the recount: {found}, of {messages} messages, {time.monotonic() - begun:.0f} s")
    found |= {"rows_in": run.rows, "dropped": {name: by_digit[name] for name in DROPPED}}
    assert sums == found
    assert sums["rows_in"] == sums["good"] + sum(by_digit.values())
    return messages


def test_each_fault(rows, tmp_path):
    """Faults of each kind happen in turn, and no row is missing in a record."""
    with running(tmp_path, rows) as run:
        for tenth, (name, fault) in enumerate(FAULTS):
            run.play(tenth, fault, name)
        run.stop()
        attempts = Counter(each.state for each in run.records(all_attempts=True))
        say(f"attempts of {len(run.records())} micro-batches: {dict(attempts)}")
        ends = events(run)
        say(f"tasks: {dict(ends)}")
        messages = check(run)
    assert ends["speculative copy: Success"], "no speculative copy has won"
    assert ends["ExceptionFailure"] > 10, "too few tasks failed"
    assert ends["executor removed"], "no executor was killed"
    assert attempts["begun"], "the driver was not killed within a micro-batch"
    assert messages > rows * 3 // 10, "nothing was sent twice"


def test_memory(rows, tmp_path):
    """Without faults, no process holds more in the last tenth than in the second one."""
    with running(tmp_path, rows) as run:
        for tenth in range(TENTHS):
            run.play(tenth, None, "")
            held = {kind: held >> 20 for kind, held in run.held[tenth].items() if kind}
            say(f"     MiB: {held}")
        run.stop()
        records = run.records()
    assert rows == sum(each.rows_in for each in records)
    assert all(each.balanced for each in records)
    for kind in ("driver", "worker"):
        before, after = (run.held[tenth][kind] for tenth in (1, TENTHS - 1))
        assert after < before * GROWTH + ROOM, f"{kind}: {before} bytes, then {after}"
