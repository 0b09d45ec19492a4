"""Opens producers, readers and consumers by the functions of `pulsar.asyncio`, and waits in Python.

pulsar-client's blocking functions report only the code of an error; these report its text too, for
example that of an exception of an authentication plug-in. And a thread that waits in a blocking
function takes the interpreter's lock ten times a second. If it is a daemon and the interpreter ends
meanwhile (before Python 3.14), the thread is ended inside of C++, which aborts the process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.runtime.results import error_of


def waiting_in_python(client: pulsar.Client) -> pulsar.Client:
    """Have *client* open by an `Opener`, if the installed pulsar-client can, and return it."""
    if hasattr(client._client, "create_producer_async_v2"):  # noqa: SLF001
        client._client = Opener(client._client)  # noqa: SLF001
    return client


class Opener:
    """pulsar-client's handle of a client, for threads that can block. Thread-safe."""

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
