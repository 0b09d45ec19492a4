"""File descriptors: each connection needs one, and their number is limited for each process."""

from __future__ import annotations

import logging
import sys

if sys.platform != "win32":
    import resource

_log = logging.getLogger("pulsar_retry")

#: How many are reserved for the rest of the process, but at most half of the limit.
_OTHERS = 128


def room_for(connections: int) -> int:
    """Return how many of *connections* the process may have at a time; log it if these are fewer.

    Beyond the limit (``ulimit -n``, often 1024) no connection can be made, and requests would count
    as failed.
    """
    soft = _limits()[0]
    room = connections if soft is None else max(1, soft - min(_OTHERS, soft // 2))
    if room >= connections:
        return connections
    _log.warning(
        "at most %d requests will be outstanding, not %d, because at most %d files can be open "
        "(ulimit -n)",
        room,
        connections,
        soft,
    )
    return room


def make_room_for(connections: int) -> None:
    """Raise the soft limit of the process as far as needed, and as the hard limit allows."""
    if sys.platform == "win32":
        return
    soft, hard = _limits()
    wanted = connections + _OTHERS
    if soft is None or soft >= wanted:
        return
    wanted = wanted if hard is None else min(wanted, hard)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (wanted, resource.RLIM_INFINITY if hard is None else hard)
    )


def _limits() -> tuple[int | None, int | None]:
    """Return the soft and the hard limit; None stands for no limit. Windows has none."""
    if sys.platform == "win32":
        return None, None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    return None if soft == infinite else soft, None if hard == infinite else hard
