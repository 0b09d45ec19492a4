"""What a client has beside pulsar-client's own, for its consumers and for the rooms above."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pulsar

from pulsar_retry.consumer.handoff.making import NewMessage
from pulsar_retry.observe.watch import Instrument
from pulsar_retry.runtime.clock import Clock, Timer


@attrs.frozen(eq=False, kw_only=True)
class ClientParts:
    """The parts of one client.

    Attributes:
        clock: The clock, which tests can replace.
        timer: Makes delayed calls: one for each client, and so one thread for each client.
        operation_timeout: Seconds that pulsar-client waits for the answer to an operation.
        new_message: Makes the builder of a raw message that the raw client can send.
        letter_client: Publishes the letters. It is a separate client, so that the other one keeps
            its connection when a broker refuses a letter. It connects at the first letter. None:
            the broker is in memory.
        instrument: Returns an instrument for each consumer, by its subscription; None: there are no
            others than usual.
    """

    clock: Clock
    timer: Timer
    operation_timeout: float
    new_message: NewMessage
    letter_client: pulsar.Client | None
    instrument: Callable[[str], Instrument] | None
