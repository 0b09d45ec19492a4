"""A limit on how often a client can present a wrong token."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable

#: How many wrong tokens an address can present at once; then the seconds until each further one.
BURST, INTERVAL = 10, 6.0
#: The maximum number of addresses that are remembered.
_MOST = 10_000


class TooManyTriesError(Exception):
    """An address has presented too many wrong tokens.

    Attributes:
        wait: Seconds until it may present another one.
    """

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many wrong tokens; try again in {wait:.0f} s")
        self.wait = wait


class Throttle:
    """Limits the attempts of each client address. Thread-safe.

    An attempt is counted before the token is checked, and uncounted if the token is right. So
    concurrent requests cannot exceed the limit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without attempts; *clock* returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        #: For each address: when all its attempts are forgotten. Each one takes `INTERVAL`.
        self._busy_until: dict[str, float] = {}

    def take(self, address: str) -> None:
        """Count an attempt.

        Args:
            address: The client's IP address. All addresses of an IPv6 /64 count as one.

        Raises:
            TooManyTriesError: there were too many attempts.
        """
        now, who = self._clock(), _network(address)
        with self._lock:
            until = max(self._busy_until.get(who, now), now) + INTERVAL
            wait = until - now - BURST * INTERVAL
            if wait > 0:
                raise TooManyTriesError(wait)
            if len(self._busy_until) >= _MOST:
                self._forget(now)
            self._busy_until[who] = until

    def give_back(self, address: str) -> None:
        """Uncount an attempt, because the token was right."""
        who = _network(address)
        with self._lock:
            if who in self._busy_until:
                self._busy_until[who] -= INTERVAL

    def _forget(self, now: float) -> None:
        """Remove addresses without attempts, or else the address whose attempts end first."""
        kept = {who: until for who, until in self._busy_until.items() if until > now}
        if len(kept) >= _MOST:
            del kept[min(kept, key=kept.__getitem__)]
        self._busy_until = kept


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:  # noqa: PLR2004 - IPv4
        return address
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
