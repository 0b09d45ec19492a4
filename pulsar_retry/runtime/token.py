"""Tokens that are read again from their source."""

from __future__ import annotations

from collections.abc import Callable

import pulsar


def authentication(
    read: Callable[[], str | None], *, renew: bool
) -> pulsar.AuthenticationToken | None:
    """Return pulsar-client's authentication by token; None if *read* returns no token.

    Args:
        read: Returns the present token. Exceptions of its first call are raised here.
        renew: Whether to call it again for each connection.
    """
    token = read()
    if token is None:
        return None
    return pulsar.AuthenticationToken(renewed(read, token) if renew else token)


def renewed(read: Callable[[], str | None], token: str) -> Callable[[], str]:
    """Return a function that reads the token again, and returns the last one if that fails.

    pulsar-client calls the function on its own thread, where an exception would end the process.
    """
    last = token

    def current() -> str:
        nonlocal last
        try:
            last = read() or last
        except Exception:  # noqa: BLE001 - see above; the broker will refuse the old token
            return last
        return last

    return current
