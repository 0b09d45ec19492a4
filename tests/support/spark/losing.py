"""A program that loses an executor, with the rows it keeps, while rows are judged by a random rule.

It judges four partitions on two executors. The task of the last one waits until all others are
done. Then the executor that does not run it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_spark import local_session
from py4j.protocol import Py4JJavaError

from pulsar_retry_spark import split

ROWS, PARTS = 20_000, 4


def waiting(folder: str) -> Any:
    """Return a function for `mapInArrow` that says where it is, and in the last part waits."""

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        # This function runs in a worker.
        import os
        import time
        from pathlib import Path

        from pyspark import TaskContext

        part = TaskContext.get().partitionId()
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
        executor = daemon.rpartition(")")[2].split()[1]
        (Path(folder) / f"part={part}").write_text(executor)
        deadline = time.monotonic() + 150
        while part == 3 and not (Path(folder) / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield from batches

    return passing


def places(folder: Path) -> list[str]:
    """Return the executor of each part that has begun, the last part's first."""
    files = [folder / f"part={part}" for part in reversed(range(PARTS))]
    return [text for each in files if each.exists() and (text := each.read_text())]


def main() -> None:
    """Run it; write what came of it to `said.json`."""
    folder = Path(os.environ["FOLDER"])
    said: dict[str, Any] = {"lost": False}
    conf = {"spark.executor.memory": "512m"}
    with local_session(master="local-cluster[2,1,1024]", conf=conf) as spark:
        context = spark.sparkContext._jsc.sc()

        def executors() -> set[str]:
            ids = context.getExecutorIds()
            return {ids.apply(number) for number in range(ids.size())}

        def done() -> int:
            running = spark.sparkContext.statusTracker().getActiveStageIds()
            stages = map(spark.sparkContext.statusTracker().getStageInfo, running)
            return max((each.numCompletedTasks for each in stages if each), default=0)

        def lose() -> None:
            deadline = time.monotonic() + 150
            while done() < PARTS - 1 or len(places(folder)) < PARTS:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.05)
            waits, *others = places(folder)
            before = executors()
            for each in set(others) - {waits}:
                os.kill(int(each), signal.SIGKILL)
            while before <= executors() and time.monotonic() < deadline:
                time.sleep(0.05)
            said["lost"] = not before <= executors()
            (folder / "go").touch()

        while len(executors()) < 2:
            time.sleep(0.05)
        other = threading.Thread(target=lose)
        other.start()
        frame = spark.range(0, ROWS, 1, PARTS)
        slow = frame.mapInArrow(waiting(str(folder)), frame.schema)
        good, bad = split(slow, {"lucky": "rand() < 0.5"})
        other.join()
        try:
            said["rows"] = good.count() + bad.count()
        except Py4JJavaError as error:
            said["error"] = error.java_exception.toString()
    (folder / "said.json").write_text(json.dumps(said))
