"""Workers whose service is away for a while: the program of a user, and what outsiders see of it.

As a program it is one process of workers, with the defaults, but not the policy's. Its arguments
are URL, topic, folder, type, form, policy, and how many workers it has. In the folder, the
file `away` means that the service is away, and `handled` has a line for each message that was
handled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pulsar

import pulsar_retry as pr
from support.appended import whole_lines
from support.reading import SUBSCRIPTION

#: The policy of the quickstart, and one with which messages die within a quarter of a minute.
POLICIES = {
    "quickstart": pr.RetryPolicy(
        max_attempts=5, backoff=pr.Exponential(1, 60), dead_letter_on=ValueError
    ),
    "hasty": pr.RetryPolicy(max_attempts=5, backoff=pr.Exponential(1, 5)),
}

#: The kinds of workers.
FORMS = ("threads", "asyncio", "processes")


def charge(folder: str, message: pulsar.Message) -> None:
    """Handle a message with the service."""
    if message.data().startswith(b"bad") or Path(folder, "away").exists():
        raise ConnectionError("the service is away")
    with Path(folder, "handled").open("ab", buffering=0) as handled:
        handled.write(message.data() + b"\n")


async def charge_later(folder: str, message: pulsar.Message) -> None:
    """Do the same on an event loop."""
    charge(folder, message)


def main(url: str, topic: str, folder: str, kind: str, form: str, policy: str, count: int) -> None:
    """Run so many workers until SIGTERM."""
    logging.basicConfig(level=logging.WARNING)
    handler = functools.partial(charge_later if form == "asyncio" else charge, folder)
    options: dict[str, Any] = {
        "consumer_type": getattr(pulsar.ConsumerType, kind),
        "retry_policy": POLICIES[policy],
    }
    if form == "processes":
        options |= {"workers": "processes", "concurrency": 3}
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with (
        pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client,
        contextlib.ExitStack() as stack,
    ):
        last, *others = (
            client.subscriber(topic, SUBSCRIPTION, handler, **options) for _ in range(count)
        )
        for each in others:
            stack.enter_context(each)
        for each in (last, *others):
            server = stack.enter_context(pr.start_metrics_server(0, health=each))
            with Path(folder, "ports").open("ab", buffering=0) as ports:
                ports.write(b"%d\n" % server.port)
        sys.stdout.write(f"{last.run()}\n")


@attrs.define
class Workers:
    """Processes of workers, seen from outside.

    Attributes:
        seen: For each look at a worker: when, its port, its state, and the codes of its probes.
    """

    url: str
    topic: str
    folder: Path
    kind: str
    form: str
    policy: str
    processes: list[subprocess.Popen[str]] = attrs.field(factory=list)
    seen: list[tuple[float, str, str, int, int]] = attrs.field(factory=list)

    def start(self, count: int = 1) -> None:
        """Start one more process with so many workers."""
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        arguments = [self.url, self.topic, self.folder, self.kind, self.form, self.policy, count]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.faults.away", *map(str, arguments)],
                env=os.environ | {"PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.processes.append(process)

    def stop(self) -> list[tuple[float, str]]:
        """Send each process a SIGTERM; return how long it took to end, and its report."""
        ends = []
        for each in self.processes:
            began = time.monotonic()
            each.terminate()
            printed, _ = each.communicate(timeout=120)
            assert each.returncode == 0
            ends.append((time.monotonic() - began, printed))
        self.processes.clear()
        return ends

    def kill(self) -> None:
        """Kill what still runs."""
        for each in self.processes:
            each.kill()
            each.communicate()

    @property
    def ports(self) -> list[str]:
        """The ports of the workers' probes."""
        return whole_lines(self.folder / "ports")

    def look(self) -> list[str]:
        """Look at each worker's probes; return their states."""
        now, states = time.monotonic(), []
        for port in self.ports:
            ready, body = _asked(port, "readyz")
            live, _ = _asked(port, "livez")
            states.append(body["subscriptions"][0]["state"])
            self.seen.append((now, port, states[-1], ready, live))
        return states

    def are(self, state: str) -> bool:
        """Look; tell whether each worker's health says *state*."""
        return set(self.look()) == {state}

    def until(self, condition: Callable[[], bool], within: float) -> float:
        """Look until *condition* holds; return how many seconds that took, or inf."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > within:
                return float("inf")
            time.sleep(0.5)
        return time.monotonic() - began

    def goes_away(self) -> None:
        """The service goes away."""
        (self.folder / "away").touch()

    def comes_back(self) -> None:
        """The service is back."""
        (self.folder / "away").unlink()

    def handled(self) -> set[str]:
        """Return which messages were handled."""
        return set(whole_lines(self.folder / "handled"))

    def logged(self, *texts: str) -> list[int]:
        """Return how many lines of the log have each of *texts*."""
        lines = (self.folder / "log").read_text(encoding="utf-8").splitlines()
        return [sum(text in line for line in lines) for text in texts]


def _asked(port: str, page: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


class Sending:
    """Publishes messages at a rate, with so many keys in turn, until it is ended."""

    def __init__(self, client: pr.Client, topic: str, keys: int = 20) -> None:
        self.sent: list[str] = []
        self._keys = keys
        self._producer = client.create_producer(topic, send_timeout_millis=0)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, text: str) -> None:
        """Publish one message."""
        key = f"key-{len(self.sent) % self._keys}"
        self._producer.send_async(text.encode(), lambda *_: None, partition_key=key)
        self.sent.append(text)

    def begin(self, rate: float) -> None:
        """Publish so many messages a second."""

        def run() -> None:
            while not self._over.wait(1 / rate):
                self.send(f"order-{len(self.sent)}")

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def end(self) -> None:
        """Publish no more; return when the broker has everything."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._producer.flush()


def dead_in(client: pr.Client, topic: str, admin: Any) -> list[str]:
    """Return the payloads in the dead-letter topic."""
    name = f"{topic}-{SUBSCRIPTION}-DLQ"
    if not admin.published(name):
        return []
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data().decode())
    reader.close()
    return found


if __name__ == "__main__":
    main(*sys.argv[1:7], count=int(sys.argv[7]))
