"""The hand-off of letters for code without a consumer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.client import Client
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.runtime.worker import side_by_side

#: Seconds after which a letter without a receipt has failed.
SEND_TIMEOUT = 30.0


class AcknowledgedLater:
    """Replaces the consumer of messages that are acknowledged after all letters are stored."""

    def acknowledge_async(self, _raw: Any, done: Callable[[_pulsar.Result], object]) -> None:
        """Report success without acknowledging the message."""
        done(_pulsar.Result.Ok)

    def is_connected(self) -> bool:
        """Return True: no connection can be lost."""
        return True


@contextlib.contextmanager
def hand_off_of(client: Client, *, max_pending: int, natively: bool = True) -> Iterator[HandOff]:
    """Yield a hand-off that publishes letters; letters that are in flight at the end fail.

    Args:
        client: Publishes the letters.
        max_pending: How many letters are in flight at most.
        natively: Send in C++ where that can be had. That needs pulsar-client's own consumer.
    """
    hand_off = HandOff(
        client,
        pulsar.schema.BytesSchema(),
        max_pending=max_pending,
        send_timeout=SEND_TIMEOUT,
        dead_letter_subscription=None,
        come_back=lambda _raw: None,  # no message is in hand
        handed_on=lambda _flights: None,
        timer=client.parts.timer,
        keep_writer_schema=True,
        natively=natively,
    )
    try:
        yield hand_off
    finally:
        hand_off.give_up()
        side_by_side(hand_off.producers.closing(), threads=natively)
