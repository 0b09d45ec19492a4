"""How long it takes to begin: imports, and a program's first message: `tox run -e bench`.

Each in a process of its own, in turn. The time is the parent's, until the program says that it is
there; processor time is the program's own, with the interpreter's start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial

import pytest

from support.benchmarks.comparing import compare_times
from support.benchmarks.loads import PAYLOAD, fill

ROUNDS = 15
CEILING = 1.3

IMPORTS = {
    "import pulsar": "import pulsar",
    "import pulsar_retry": "import pulsar_retry",
    "pulsar_retry.Client": "import pulsar_retry; pulsar_retry.Client",
    "pulsar_retry.Client, Subscriber, RetryPolicy": (
        "import pulsar_retry as pr; pr.Client, pr.Subscriber, pr.RetryPolicy"
    ),
    "pulsar_retry.asyncio": "import pulsar_retry; pulsar_retry.asyncio.Client",
    "pulsar_retry.push": "import pulsar_retry; pulsar_retry.push.Dispatcher",
}

_RECEIVE = """
consumer = client.subscribe({arguments}, consumer_type=pulsar.ConsumerType.Shared,
                            initial_position=pulsar.InitialPosition.Earliest{more})
consumer.acknowledge(consumer.receive(30_000))
"""
_CLIENT = "client = {}.Client({!r}, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))\n"

#: Says when it is there, and ends at once.
_THERE = """
import os, sys, time
sys.stdout.write(f"{time.process_time()}\\n")
sys.stdout.flush()
os._exit(0)
"""


def began(program: str) -> tuple[float, float]:
    """Run *program*; return the seconds that it took, and those of processor time."""
    # Compiled modules are kept, as those of installed packages are.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program + _THERE],
        stdout=subprocess.PIPE,
        check=True,
        env=environment,
        timeout=120,
    )
    return time.perf_counter() - start, float(done.stdout)


@pytest.mark.usefixtures("report")
def test_import(benchmark):
    """The whole interpreter, with the import and without anything else."""
    programs: dict[str, Callable[[], tuple[float, float]]] = {
        name: partial(began, program) for name, program in IMPORTS.items()
    }
    for program in programs.values():
        program()  # compiled, and read from the disk
    compare_times(benchmark, programs, "import pulsar", ROUNDS, {"import pulsar_retry": CEILING})


@pytest.mark.usefixtures("report")
def test_first_message(benchmark, broker, namespace):
    """From the start of a program until it has settled a message."""
    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    fill(broker.service_url, topic, [PAYLOAD] * 1_000)

    def contestant(kind: str, more: str = "") -> Callable[[], tuple[float, float]]:
        def run() -> tuple[float, float]:
            module = "pulsar" if kind == "pulsar" else "pulsar, pulsar_retry as pr"
            arguments = f"{topic!r}, {uuid.uuid4().hex!r}"
            return began(
                f"import {module}\n"
                + _CLIENT.format(kind, broker.service_url)
                + _RECEIVE.format(arguments=arguments, more=more)
            )

        return run

    contestants = {
        "pulsar.Client": contestant("pulsar"),
        "pr.Client": contestant("pr"),
        "pr.Client, enable_retry": contestant("pr", ", enable_retry=True"),
    }
    for each in contestants.values():
        each()
    compare_times(benchmark, contestants, "pulsar.Client", ROUNDS)
