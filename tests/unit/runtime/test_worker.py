"""The thread for calls that can block."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.runtime.worker import Worker

AT_EXIT = """
import atexit
from pulsar_retry.runtime.worker import Worker

worker = Worker("a-worker")
worker.submit(int)

@atexit.register
def end():
    assert worker.submit(lambda: print("done"))
    worker.close()
"""


def test_a_worker_works_while_the_process_ends() -> None:
    """So that what is in flight then is handed off."""
    ran = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")


@pytest.mark.parametrize("library", ["gevent", "eventlet", None])
def test_threads_that_are_none(library: str | None, monkeypatch: Any, caplog: Any) -> None:
    """A client says that it cannot work with them as it should."""
    if library is not None:

        def start_new_thread() -> None:
            """Do what gevent's does."""

        start_new_thread.__module__ = f"{library}.thread"
        monkeypatch.setattr("_thread.start_new_thread", start_new_thread)
    pr.Client("pulsar://127.0.0.1:1").close()
    said = [each.getMessage() for each in caplog.records if "has replaced threads" in each.msg]
    assert [library] * bool(library) == [each.partition(" ")[0] for each in said]


def test_tasks_run_in_order_and_an_error_ends_none() -> None:
    """And a closed worker takes no more."""
    worker, done = Worker("a-worker"), []
    assert worker.submit(lambda: done.append(1))
    assert worker.submit(lambda: 1 / 0)
    assert worker.submit(lambda: done.append(2))
    worker.close()
    assert done == [1, 2]
    assert not worker.submit(int)
    worker.close()


def test_its_thread_ends_with_it() -> None:
    """A task keeps nothing alive that it was about; nobody has to close a worker."""
    worker, tasks = Worker("a-worker-to-forget"), threading.Event()
    worker.submit(tasks.set)
    assert tasks.wait(120)
    (thread,) = (each for each in threading.enumerate() if each.name == "a-worker-to-forget")
    del worker
    gc.collect()
    thread.join(120)
    assert not thread.is_alive()


def test_a_worker_can_be_closed_by_its_own_task() -> None:
    """Which does not wait for itself."""
    worker, ended = Worker("a-worker"), threading.Event()

    def close() -> None:
        worker.close()
        ended.set()

    worker.submit(close)
    assert ended.wait(120)
