"""Handlers in child processes, for handlers that need much processor time.

Each worker thread has one child process and gives it one message at a time. So it is known which
message a child had in hand when it died. Children are spawned, never forked, because pulsar-client
does not survive a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from multiprocessing.connection import Connection
from typing import Any

from pulsar.schema import AvroSchema, BytesSchema, JsonSchema, StringSchema

from pulsar_retry.consumer.handoff.writer_schemas import letters_schema
from pulsar_retry.errors import ConfigError, WorkerCrashedError, shown
from pulsar_retry.letters.facts import Facts
from pulsar_retry.policy.outcomes import outcome_of
from pulsar_retry.pull.engine.ending import ENDS, Ending, check_crashes, ending, failed_with
from pulsar_retry.pull.signals import held_back, ignore
from pulsar_retry.pull.typed import of_message
from pulsar_retry.pull.workers.pickled import Writers, carried, dumps, restored
from pulsar_retry.runtime.fork import free_in_child

_CONTEXT = multiprocessing.get_context("spawn")

#: Seconds that a child has to end by itself after its last message.
_PATIENCE = 5.0

#: The child processes of this process, which may have ended.
_children: weakref.WeakSet[Any] = weakref.WeakSet()

#: Held while a child process is started.
_starting = free_in_child(threading.Lock())


@atexit.register
def _kill_children() -> None:
    # Their handlers were abandoned. multiprocessing would wait for them.
    _starting.acquire()  # not released: a worker thread that still runs must start no other one
    for process in _children:
        process.kill()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_children.clear)


class ProcessWorker:
    """A handler that calls the real handler in a child process. Not thread-safe, except `kill`."""

    def __init__(self, handler: Any, schema: Any, facts: Callable[[Any], Facts]) -> None:
        """Make a worker; the child process is started with its first message.

        *facts* returns what a message says about its origin.
        """
        self._facts = facts
        self._task = pickled("handler", handler), pickled("schema", recipe(schema))
        self._process: Any = None
        self._pipe: Any = None
        self._lock = threading.Lock()
        self._is_killed = False

    def __call__(self, message: Any) -> Any:
        """Return the outcome that the handler returns in the child process, or None.

        Raises:
            Exception: the handler's own error, or the nearest that can be made of it here.
            WorkerCrashedError: the child process died.
            CrashLoop: too many child processes have died with the message in hand.
            Ending: no child process could be started, or it cannot import the handler.
        """
        check_crashes(self._facts(message))
        process = self._process
        if self._is_killed or (process is not None and not process.is_alive()):
            self._clean_up()  # it ended after it had returned the previous result
        pipe = self._pipe if self._process is not None else self._started()
        try:
            pipe.send_bytes(pickle.dumps(carried(message)))
            answer = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerCrashedError(self._clean_up()) from error
        if answer is None:
            return None
        is_raised, outcome = answer
        if is_raised:
            raise outcome
        return outcome

    def kill(self) -> None:
        """Kill the child process; `__call__` raises then. May be called from any thread."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._is_killed = True

    def close(self) -> None:
        """Let the child process end."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            self._pipe.close()
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()

    def _started(self) -> Any:
        try:
            with _starting, self._lock:
                self._pipe, theirs = _CONTEXT.Pipe()
                process = _CONTEXT.Process(  # no daemon, so that handlers can start processes
                    target=_serve, args=(theirs, *self._task), name="pulsar-retry"
                )
                with held_back():
                    process.start()
                _children.add(process)
                self._process = process
                theirs.close()  # so that the child's death ends the pipe
            refusal = pickle.loads(self._pipe.recv_bytes())
        except Exception as error:  # noqa: BLE001 - it is never the message's fault
            is_killed = self._is_killed  # its lease has expired meanwhile
            text = shown(error) if self._process is None else self._clean_up()
            crash = WorkerCrashedError(f"no worker process could be started: {text}")
            raise crash if is_killed else Ending(crash) from None
        if refusal is not None:
            self._clean_up()
            refusal.add_note("A worker process could not import the handler.")
            raise Ending(refusal)
        return self._pipe

    def _clean_up(self) -> str:
        """Clean up after a child process that has died; return what happened."""
        with self._lock:
            self._pipe.close()
            process, self._process, self._is_killed = self._process, None, False
            if process is None:
                return "the worker process was stopped"
            process.join(_PATIENCE)
            return f"the worker process died with the message in hand: exit code {process.exitcode}"


def check_may_start() -> None:
    """Check that this process may start child processes.

    Raises:
        ConfigError: it may not.
    """
    process, accepted = multiprocessing.current_process(), ""
    if getattr(process, "_inheriting", False):  # as multiprocessing itself asks
        accepted = (
            '"threads", or a main module that starts its subscriber below `if __name__ == '
            '"__main__":`, because each worker process imports that module'
        )
    elif process.daemon:
        accepted = '"threads" in a daemonic process, because that may have no child processes'
    if accepted:
        raise ConfigError.bad("workers", "processes", accepted)


def pickled(argument: str, value: Any) -> bytes:
    """Return *value* in pickled form.

    Raises:
        ConfigError: *value* cannot be pickled.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - the value's own code may raise anything
        accepted = f"a value that another process can import or unpickle ({shown(error)})"
        raise ConfigError.bad(argument, value, accepted) from None


def recipe(schema: Any) -> tuple[Any, ...]:
    """Return how to make an equal schema, because pulsar-client's schemas cannot be pickled."""
    kind = type(schema)
    if kind is AvroSchema:
        return (kind, schema._record_cls, schema._schema)
    if kind is JsonSchema:
        return (kind, schema._record_cls)
    if kind in {BytesSchema, StringSchema}:
        return (kind,)
    return (_unchanged, schema)


def _unchanged(schema: Any) -> Any:
    return schema


def _serve(pipe: Connection, handler: bytes, schema: bytes) -> None:
    """Handle messages until the parent closes the pipe or dies."""
    ignore()  # the parent decides when a child ends
    if hasattr(os, "register_at_fork"):  # what a handler forks must not keep the pipe open
        os.register_at_fork(after_in_child=pipe.close)
    try:
        make, *record = pickle.loads(schema)
        made, writers = make(*record), Writers()
        made.attach_client(writers)
        codec = letters_schema(made)
        handle = of_message(pickle.loads(handler), made)
    except BaseException as error:  # noqa: BLE001 - it may be any module's code
        pipe.send_bytes(dumps(_raised(error)))
        return
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(pickle.dumps(None))
        while True:
            parts = pickle.loads(pipe.recv_bytes())
            writers.written = parts["written"]
            pipe.send_bytes(_answer(handle, restored(parts, codec)))


def _answer(handle: Callable[[Any], Any], message: Any) -> bytes:
    """Return whether the handler raised or returned what the parent has to decide about, and that.

    None: it has succeeded.
    """
    try:
        outcome = outcome_of(copy_context().run(handle, message))
    except BaseException as error:  # noqa: BLE001 - as in a thread
        return dumps((True, _raised(error)))
    return dumps(None if outcome is None else (False, outcome))


def _raised(error: BaseException) -> BaseException:
    error = ending(error) or error
    return error if isinstance(error, ENDS) else failed_with(error)
