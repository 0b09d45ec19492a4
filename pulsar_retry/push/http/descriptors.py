"""File descriptors: each connection needs one, and their number is limited for each process."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource

#: How many are reserved for the rest of the process, but at most half of the limit.
_OTHERS = 128


def room_for(connections: int) -> int:
    """Return how many of *connections* the process may have at a time.

    Beyond the limit (``ulimit -n``, often 1024) no connection can be made, and requests would count
    as failed.
    """
    if sys.platform == "win32":
        return connections
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(1, soft - min(_OTHERS, soft // 2)))


def make_room_for(connections: int) -> None:
    """Raise the soft limit of the process as far as needed, and as the hard limit allows."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHERS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
