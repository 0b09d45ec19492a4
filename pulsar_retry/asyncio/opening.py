"""Complete error messages of pulsar-client when something cannot be opened.

Its blocking functions report only the code. The asynchronous functions of `pulsar.asyncio` report
the text too, for example an exception of an authentication plug-in.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import _pulsar

from pulsar_retry.runtime.results import error_of


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
