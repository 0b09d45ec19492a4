"""Handlers in processes of their own, for what needs a processor and not a broker.

Each worker thread has one child process and gives it one message at a time, so it is known which
message a child that dies had in hand. Children are spawned, never forked: pulsar-client does not
survive a fork.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pulsar.schema import AvroSchema, BytesSchema, JsonSchema, StringSchema

from pulsar_retry.errors import ConfigError, HandlerError, WorkerCrashedError, shown
from pulsar_retry.policy.outcomes import Defer
from pulsar_retry.pull.board import Slot
from pulsar_retry.pull.carried import carried, restored
from pulsar_retry.pull.ending import ENDS, ending
from pulsar_retry.pull.returned import Finisher

_CONTEXT = multiprocessing.get_context("spawn")

#: Seconds for a child to end by itself when it has nothing to do any more.
_PATIENCE = 5.0

#: Seconds after which a message is tried again for which no child could be started.
_RESTART = 5.0

_log = logging.getLogger("pulsar_retry")


class ProcessWorker:
    """Calls the handler in a child process; looks like the handler. For one thread at a time."""

    def __init__(self, handler: Any, schema: Any) -> None:
        """Prepare a worker; the child is started with its first message."""
        self._task = pickled("handler", handler), pickled("schema", recipe(schema))
        self._process: Any = None
        self._pipe: Any = None
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> Any:
        """Return what the handler returns in the child.

        Raises:
            Exception: what the handler raised.
            WorkerCrashedError: the child died.
            Defer: no child could be started, which is not the message's fault.
        """
        pipe = self._pipe if self._process is not None else self._started()
        try:
            pipe.send_bytes(pickle.dumps(carried(message)))
            is_result, value = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our own child's
        except (EOFError, OSError) as error:
            raise WorkerCrashedError(self._buried()) from error
        if is_result:
            return value
        raise value

    def kill(self) -> None:
        """End the child whatever it does; `__call__` raises then. From any thread."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Let the child end."""
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
        with self._lock:
            self._pipe, theirs = _CONTEXT.Pipe()
            self._process = _CONTEXT.Process(
                target=_serve, args=(theirs, *self._task), name="pulsar-retry", daemon=True
            )
            self._process.start()
            theirs.close()  # so that the child's death ends the pipe
        try:
            self._pipe.recv_bytes()
        except (EOFError, OSError):
            _log.error("no worker process could be started: %s", self._buried())
            raise Defer(_RESTART) from None
        return self._pipe

    def _buried(self) -> str:
        with self._lock:
            self._pipe.close()
            process, self._process = self._process, None
            if process is None:
                return "the worker process was stopped"
            process.join(_PATIENCE)
            return f"the worker process died with the message in hand: exit code {process.exitcode}"


def pickled(argument: str, value: Any) -> bytes:
    """Return *value* as it travels to another process.

    Raises:
        ConfigError: it cannot.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - the value's own code may raise anything
        accepted = f"what another process can import or unpickle ({shown(error)})"
        raise ConfigError.bad(argument, value, accepted) from None


def recipe(schema: Any) -> tuple[Any, ...]:
    """Return what makes a schema like *schema*: pulsar-client's cannot be pickled themselves."""
    if type(schema) in {JsonSchema, AvroSchema}:
        return (type(schema), schema._record_cls)  # noqa: SLF001 - what it was made of
    if type(schema) in {BytesSchema, StringSchema}:
        return (type(schema),)
    return (_itself, schema)


def _itself(schema: Any) -> Any:
    return schema


def _serve(pipe: Connection, handler: bytes, schema: bytes) -> None:
    """Handle messages until the parent closes the pipe or dies."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when a child ends
        signal.signal(number, signal.SIG_IGN)
    handle = pickle.loads(handler)  # noqa: S301 - from our own parent
    make, *record = pickle.loads(schema)  # noqa: S301 - as above
    codec = make(*record)
    finisher, slot = Finisher(), Slot()
    handle = finisher.finishing(handle, slot)
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            message = restored(pickle.loads(pipe.recv_bytes()), codec)  # noqa: S301 - as above
            pipe.send_bytes(_answer(handle, message))


def _answer(handle: Callable[[Any], Any], message: Any) -> bytes:
    try:
        result = handle(message)
    except (Exception, *ENDS) as error:  # noqa: BLE001 - the parent judges it
        return _pickled_error(ending(error) or error)
    try:
        return pickle.dumps((True, result))
    except Exception:  # noqa: BLE001 - only an outcome matters, and those can be pickled
        return pickle.dumps((True, None))


def _pickled_error(error: BaseException) -> bytes:
    """Return the error with its traceback, or what can be said of it where it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(answer := pickle.dumps((False, error)))  # noqa: S301 - what was just made
    except Exception:  # noqa: BLE001 - it is the error's own code that fails
        text = f"{type(error).__qualname__}: {shown(error)}"
        kind = next((each for each in ENDS if isinstance(error, each)), HandlerError)
        return pickle.dumps((False, kind(text)))
    return answer
