"""Handlers that look at a message's history before they touch it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pulsar_retry.policy.outcomes import Reject
from pulsar_retry.pull.letters import chain_key
from pulsar_retry.pull.quarantine import CRASH_LOOP, ClaimStore, Quarantine, crashes_of


def guarded(
    handler: Callable[[Any], Any], quarantine: Quarantine, *, counts_redeliveries: bool
) -> Callable[[Any], Any]:
    """Return *handler* such that it is not called with messages that are quarantined.

    Args:
        handler: The handler.
        quarantine: What is quarantined.
        counts_redeliveries: Whether the broker's redeliveries are not the attempts themselves.
    """

    def handle(message: Any) -> Any:
        key = _claimed(message, quarantine, counts_redeliveries=counts_redeliveries)
        try:
            return handler(message)
        finally:
            _settled(quarantine.store, key)

    return handle


def guarded_async(
    handler: Callable[[Any], Awaitable[Any]], quarantine: Quarantine, *, counts_redeliveries: bool
) -> Callable[[Any], Awaitable[Any]]:
    """Return what `guarded` returns, for a handler that is ``async def``."""

    async def handle(message: Any) -> Any:
        key = _claimed(message, quarantine, counts_redeliveries=counts_redeliveries)
        try:
            return await handler(message)
        finally:
            _settled(quarantine.store, key)

    return handle


def _claimed(message: Any, quarantine: Quarantine, *, counts_redeliveries: bool) -> str:
    """Claim a message and return its key.

    Raises:
        Reject: it is quarantined.
    """
    key = chain_key(message)
    claims = 0 if quarantine.store is None else quarantine.store.claim(key)
    if quarantine.holds(
        claims=claims,
        worker_crashes=crashes_of(message.properties()),
        redeliveries=message.redelivery_count() if counts_redeliveries else 0,
    ):
        _settled(quarantine.store, key)
        raise Reject(CRASH_LOOP)
    return key


def _settled(store: ClaimStore | None, key: str) -> None:
    if store is not None:
        store.settle(key)
