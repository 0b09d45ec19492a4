"""A limit on how often somebody may present a wrong token."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable

#: Wrong tokens that an address may present at once; after these, seconds until the next one.
BURST, INTERVAL = 10, 6.0
#: Addresses that are remembered at most.
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

    An attempt is counted before the token is looked at, and given back if it was right, so that
    concurrent requests cannot exceed the limit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Make one; *clock* tells seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        #: By address: when all of its attempts will be forgotten, each after `INTERVAL`.
        self._busy_until: dict[str, float] = {}

    def take(self, address: str) -> None:
        """Count an attempt.

        Args:
            address: The client's IP address. The addresses of an IPv6 /64 count as one.

        Raises:
            TooManyTriesError: there were too many.
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
        """Forget an attempt: the token was right."""
        who = _network(address)
        with self._lock:
            if who in self._busy_until:
                self._busy_until[who] -= INTERVAL

    def _forget(self, now: float) -> None:
        """Forget addresses whose attempts are all forgotten, or else the one that is next."""
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
