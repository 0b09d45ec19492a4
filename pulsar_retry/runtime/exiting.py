"""Keeps closed clients of pulsar-client until the process has ended.

Closing a client returns slightly before pulsar-client's own thread releases the client. If this
thread is the last one, it destroys the client and the Python functions that the client has, such
as a token supplier. That needs the interpreter's lock. An interpreter that is shutting down (before
Python 3.14) ends the thread instead, and C++ aborts the process: "terminate called without an
active exception". Therefore the clients that were closed last are kept, and at exit they are never
destroyed. A closed client holds about 20 kB, and no thread, connection or file.
"""

from __future__ import annotations

import atexit
from collections import deque
from typing import Any

from pulsar_retry.runtime.fork import keep_for_ever

#: How many clients are kept. Half of them are clients of letters. Threads released the clients that
#: were closed earlier long ago.
_MOST_CLIENTS = 128

_closed: deque[Any] = deque(maxlen=_MOST_CLIENTS)


def keep_until_exit(raw: Any) -> None:
    """Keep a closed raw client. Thread-safe."""
    _closed.append(raw)


@atexit.register
def _keep_all() -> None:
    # Functions registered at exit run in reverse. Modules that close clients import this one first.
    while _closed:
        keep_for_ever(_closed.pop())
