"""Tokens that are read again, from wherever they are kept."""

from __future__ import annotations

from collections.abc import Callable

import pulsar


def authentication(
    read: Callable[[], str | None], *, renew: bool
) -> pulsar.AuthenticationToken | None:
    """Return what pulsar-client proves by who we are; None: *read* gives no token.

    Args:
        read: Returns the token of now. What it raises at first is raised here.
        renew: Whether to call it again at each connection.
    """
    token = read()
    if token is None:
        return None
    return pulsar.AuthenticationToken(renewed(read, token) if renew else token)


def renewed(read: Callable[[], str | None], token: str) -> Callable[[], str]:
    """Return a function that reads the token again, and gives the last one if it can't.

    pulsar-client calls it on a thread of its own, where an exception would end the process.
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
