"""Keep closed clients of pulsar-client until the process has ended.

Closing a client returns a moment before pulsar-client's own thread lets go of it. If that thread
is the last to do so, it destroys the client, and with it the Python functions that it was given,
such as a token supplier. That takes the interpreter's lock; an interpreter that is shutting down
(before Python 3.14) ends the thread instead, and C++ answers by aborting the process: "terminate
called without an active exception". So the clients that were closed last are kept, and at exit they
are never destroyed. A closed client holds about 20 kB, and no thread, connection or file.
"""

from __future__ import annotations

import atexit
from collections import deque
from typing import Any

from pulsar_retry.runtime.fork import keep_for_ever

#: How many are kept, of which half are those of letters. Those closed before them are long out of
#: the hands of their threads.
_MOST = 128

_closed: deque[Any] = deque(maxlen=_MOST)


def keep_until_exit(raw: Any) -> None:
    """Keep a raw client that is closed. Thread-safe."""
    _closed.append(raw)


@atexit.register
def _keep_all() -> None:
    # Functions registered at exit run in reverse: whoever closes clients there imports this first.
    while _closed:
        keep_for_ever(_closed.pop())
