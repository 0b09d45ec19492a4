"""Results of pulsar-client's asynchronous functions: their exceptions, and waiting for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import _pulsar
import pulsar

#: After one of these results a producer never works again and must be replaced.
PRODUCER_GONE = frozenset(
    {
        _pulsar.Result.AlreadyClosed,
        _pulsar.Result.ProducerFenced,
        _pulsar.Result.ProducerNotInitialized,
        _pulsar.Result.TopicTerminated,
    }
)


def error_of(result: _pulsar.Result) -> Exception:
    """Return the exception for *result*."""
    kind = getattr(_pulsar, result.name, _pulsar.PulsarException)
    return kind(f"Pulsar error: {result.name}")


def level_of(error: BaseException) -> int:
    """Return the level of the log for *error*, or its cause: ERROR if it stays until someone acts.

    A terminated topic accepts no message any more, however often publishing is repeated.
    """
    both = (error, error.__cause__)
    is_final = any(isinstance(each, _pulsar.TopicTerminated) for each in both)
    return logging.ERROR if is_final else logging.WARNING


def waiting_in_python(client: pulsar.Client) -> pulsar.Client:
    """Have *client* open by an `Opener`, if the installed pulsar-client can, and return it.

    A thread that waits in a blocking function of pulsar-client takes the interpreter's lock ten
    times a second. If it is a daemon and the interpreter ends meanwhile (before Python 3.14), the
    thread is ended inside of C++, which aborts the process. Threads of this package open producers
    of letters, perhaps while the process ends.
    """
    if hasattr(client._client, "create_producer_async_v2"):  # noqa: SLF001
        client._client = Opener(client._client)  # noqa: SLF001
    return client


class Opener:
    """pulsar-client's handle of a client, for threads that can block. Thread-safe.

    pulsar-client's blocking functions report only the code of an error. The asynchronous functions
    of `pulsar.asyncio` report its text too, for example an exception of an authentication plug-in.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def create_producer(self, *arguments: Any) -> Any:
        """Return a raw producer."""
        return _opened(self._raw.create_producer_async_v2, arguments)

    def create_reader(self, *arguments: Any) -> Any:
        """Return a raw reader."""
        return _opened(self._raw.create_reader_async_v2, arguments)

    def subscribe(self, *arguments: Any) -> Any:
        """Return a raw consumer of one topic."""
        return _opened(self._raw.subscribe_async_v2, arguments)

    def subscribe_topics(self, *arguments: Any) -> Any:
        """Return a raw consumer of several topics."""
        return _opened(self._raw.subscribe_async_v2, arguments)


def _opened(open_: Callable[..., None], arguments: tuple[Any, ...]) -> Any:
    opened: Future[Any] = Future()
    open_(*arguments, opened.set_result)
    result = opened.result()
    if not isinstance(result, _pulsar.Error):
        return result
    error = error_of(result.error)
    raise type(error)(f"{error}: {result.message}" if result.message else str(error))
