"""Beside the Java and Go clients, each in a process of its own on one broker."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pulsar
import pytest

from support.benchmarks.comparing import Stopwatch, compare
from support.interop.peers import Program
from support.interop.programs import PEERS, go_program, java_program, running

ROUNDS = 9
PAYLOAD = b"x" * 1024
IN_FLIGHT = 1_000
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@attrs.frozen
class Race:
    """What is raced.

    Attributes:
        do: The programs' name for it.
        messages: How many.
        delay: Of letters, in milliseconds.
        batched: Whether the messages came in batches.
        base: Whom we are to be compared with.
        floor: How much of its rate ours ought to be at least.
    """

    do: str
    messages: int
    delay: int = 60_000
    batched: bool = False
    base: str = "Go"
    floor: float = 1.0


RACES = {
    "acknowledge": Race("acknowledge", 200_000, batched=True, base="pulsar.Client", floor=0.97),
    "reconsume": Race("reconsume", 300, base="Java", floor=0.9),
    "pipeline": Race("pipeline", 50_000, floor=0.85),
    "loop": Race("loop", 50_000, delay=1_000, floor=0.75),
}


@pytest.fixture(scope="module")
def programs(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Program]]:
    """Give the clients' programs, each running."""
    url = broker.service_url
    java, go = tmp_path_factory.mktemp("java"), tmp_path_factory.mktemp("go")
    race = PEERS / "race.py"
    commands = {
        "Java": java_program("Race.java", url, java, heap="512m", fast_start=False),
        "Go": go_program("race", url, go),
        "pulsar.Client": [sys.executable, race, "bare", url],
        "pr.Client": [sys.executable, race, "ours", url],
        "pr.Client, hand-off in Python": [sys.executable, race, "python", url],
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running(command, tmp_path_factory.mktemp("program")))
            for name, command in commands.items()
        }


def fill(url: str, topic: str, race: Race) -> None:
    """Publish a race's messages."""
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=5_000, batching_enabled=race.batched
    )
    for _ in range(race.messages):
        producer.send_async(PAYLOAD, lambda *_: None)
    producer.flush()
    client.close()


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(pid: int) -> str:
    """Return how much memory a process has held at most."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    kilobytes = int(status.partition("VmHWM:")[2].split()[0])
    return f"{kilobytes / 1024:.0f} MiB"


@pytest.mark.parametrize("race", RACES.values(), ids=RACES)
@pytest.mark.usefixtures("report")
def test_race(benchmark, broker, namespace, programs, race):
    """The same work by each client, in turn."""

    def contestant(program: Program) -> Callable[[], Stopwatch]:
        def run() -> Stopwatch:
            topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
            fill(broker.service_url, topic, race)
            before = processor_time(program.pid)
            seconds = program.call(
                race.do,
                topic=topic,
                messages=race.messages,
                delay_ms=race.delay,
                in_flight=IN_FLIGHT,
            )
            used = processor_time(program.pid) - before
            return Stopwatch.of(race.messages, seconds, used)

        return run

    compare(
        benchmark,
        {name: contestant(program) for name, program in programs.items()},
        race.base,
        ROUNDS,
        {"pr.Client": race.floor},
    )
    for name, program in programs.items():
        benchmark.extra_info[f"{name}, peak memory"] = peak_memory(program.pid)
