"""Handlers that other processes import, and a program that runs a subscriber.

The program handles the messages of a topic until SIGTERM, and writes each attempt to a file, as a
line with the payload. Payloads say what happens: ``flaky…`` fails at the first attempt, ``poison…``
at every attempt.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pulsar

import pulsar_retry as pr

SUBSCRIPTION = "billing"


def payload(number: int) -> bytes:
    """Return the payload of the message with that number: 1 % poison, 5 % flaky."""
    kind = b"poison" if number % 100 == 0 else b"flaky" if number % 20 == 1 else b"fine"
    return b"%s-%d" % (kind, number)


def judge(message: Any) -> None:
    """Do what the payload says."""
    content = message.data()
    if content.startswith(b"poison") or (
        content.startswith(b"flaky") and pr.attempt_of(message) == 1
    ):
        raise ValueError(f"cannot do {content!r}")


def leave(_message: Any) -> None:
    """Raise what ends a program."""
    sys.exit("no database")


def interrupt(_message: Any) -> None:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt


def describe(message: Any) -> Any:
    """Fail with the contents of a message in another process, so that a test can see them."""
    raise RuntimeError(
        repr(
            (
                os.getpid(),
                message.data(),
                message.value(),
                message.properties(),
                message.partition_key(),
                message.topic_name(),
                str(message.message_id()),
                message.redelivery_count(),
            )
        )
    )


def die(message: Any) -> None:
    """Kill the process if the message is a killer; otherwise succeed."""
    if message.data() == b"killer":
        os._exit(9)


def fork_and_die(message: Any) -> None:
    """Kill the process, but none that it forks; the payload names the file for its id."""
    if (forked := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    Path(message.data().decode()).write_text(str(forked))
    os._exit(9)


def hang(message: Any) -> None:
    """Never return at the first attempt."""
    if pr.attempt_of(message) == 1:
        time.sleep(600)


def say_attempt(message: Any) -> None:
    """Fail, and say at which attempt."""
    raise ValueError(f"attempt {pr.attempt_of(message)}")


def start_others(_message: Any) -> None:
    """Start processes, end them by SIGTERM, and say by raising how they ended."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    program.terminate()
    forks = multiprocessing.get_context("fork")
    began = forks.Event()
    child = forks.Process(target=_begin, args=(began,))
    child.start()
    began.wait()
    child.terminate()
    child.join()
    raise RuntimeError(f"they ended with {program.wait()} and {child.exitcode}")


def _begin(began: Any) -> None:
    began.set()
    time.sleep(600)


def raising(error: BaseException) -> Callable[[Any], Any]:
    """Return a handler that raises *error*."""

    def handle(_message: Any) -> Any:
        raise error

    return handle


def awaiting(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return *act* as an ``async def`` handler."""

    async def handle(message: Any) -> Any:
        await asyncio.sleep(0)
        return act(message)

    return handle


def hiding(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a lambda that calls a handler, so that nothing shows whether it is ``async def``."""
    return lambda message: handler(message)  # noqa: PLW0108 - that is the point


def drop(_message: Any) -> Any:
    """Drop the message."""
    return pr.Drop("seen before")


USER: ContextVar[bytes] = ContextVar("USER")


def bind(message: Any) -> None:
    """Bind a context variable, which the message before has not bound."""
    assert USER.get(None) is None
    USER.set(message.data())


def hidden(message: Any) -> Any:
    """Return a coroutine that drops the message."""
    return awaiting(drop)(message)


def lazy(message: Any) -> Any:
    """Return a generator."""
    return (each for each in [message])


class Unloadable:
    """A handler that another process cannot load."""

    def __init__(self, way: str) -> None:
        self._way = way

    def __call__(self, _message: Any) -> None:
        """Fail the test: nothing calls this."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fail in the way *way* when another process unpickles the handler."""
        if state["_way"] == "import":
            importlib.import_module("no_such_module")
        elif state["_way"] == "exit":
            sys.exit("not here")
        else:
            os._exit(9)


def main() -> None:
    """Run a subscriber: URL, topic, file, seconds per message, backoff, redelivery."""
    url, topic, path, pause, backoff, redelivery = sys.argv[1:]
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def handle(message: Any) -> None:
        os.write(log, message.data() + b"\n")
        time.sleep(float(pause))
        judge(message)

    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(url, operation_timeout_seconds=90, logger=quiet) as client:
        subscriber = client.subscriber(
            topic,
            SUBSCRIPTION,
            handle,
            retry_policy=pr.RetryPolicy(max_attempts=3, backoff=backoff),
            redelivery=redelivery,
            breaker=None,  # attempts are counted, also where all messages fail
        )
        report = subscriber.run()
    Path(f"{path}.report").write_text(repr(report), encoding="utf-8")


if __name__ == "__main__":
    main()
