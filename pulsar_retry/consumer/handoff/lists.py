"""Settles a list of messages, such as `batch_receive` returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from pulsar_retry.errors import BatchSettleError


def settle_each(messages: Sequence[Any], settle: Callable[[Any], Future[None]]) -> None:
    """Settle all *messages* at the same time and wait for them.

    Raises:
        BatchSettleError: some messages failed; the error has their errors. The others are settled.
    """
    begun: list[Future[None] | Exception] = []
    for message in messages:
        try:
            begun.append(settle(message))
        except Exception as error:  # noqa: BLE001 - the other messages must still be settled
            begun.append(error)
    raise_failures([each.exception() if isinstance(each, Future) else each for each in begun])


def raise_failures(outcomes: Sequence[BaseException | None]) -> None:
    """Raise an error if some messages of a list have failed.

    Raises:
        BatchSettleError: as for `settle_each`.
    """
    failures = {
        position: outcome
        for position, outcome in enumerate(outcomes)
        if isinstance(outcome, Exception)
    }
    if failures:
        raise BatchSettleError(
            f"{len(failures)} of {len(outcomes)} messages could not be handed on",
            list(failures.values()),
            list(failures),
        )
