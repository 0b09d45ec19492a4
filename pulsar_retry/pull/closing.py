"""Closes what a subscriber has open, and does not wait for that without a limit."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pulsar_retry.pull.report import StopRequest
from pulsar_retry.runtime.clock import Clock

_log = logging.getLogger("pulsar_retry")

#: Seconds for closing at least. A broker that answers needs milliseconds.
_GRACE = 5.0

#: Seconds between two looks at the time that is left.
_LOOK = 1.0


def close_in_time(
    close: Callable[[], None],
    stop: Callable[[], StopRequest | None],
    clock: Clock,
    facts: dict[str, str],
) -> None:
    """Call *close* on another thread, and wait for it as long as a stop allows, or for 5 s.

    After that it continues, and this is logged. The interpreter waits for it before it exits: it
    must not end while a thread is in pulsar-client.

    Args:
        close: The function. Its errors are logged.
        stop: Returns the stop that was asked for last; None: there is none, and no limit.
        clock: The clock.
        facts: What the log says of the subscription.
    """
    closed, name, begun = clock.event(), facts["subscription"], clock.monotonic()

    def run() -> None:
        try:
            close()
        except Exception:  # noqa: BLE001 - nobody else is told
            _log.exception("the subscription %r was not closed", name, extra=facts)
        finally:
            closed.set()

    try:
        clock.thread(target=run, name="pulsar-retry-closing", daemon=False).start()
    except RuntimeError:  # no thread can be started
        run()
    while not closed.wait(_LOOK):
        asked = stop()
        if asked is not None and clock.monotonic() >= max(asked.deadline, begun + _GRACE):
            text = (
                "the subscription %r has stopped, but the broker does not answer: consumers and "
                "producers are still being closed"
            )
            _log.warning(text, name, extra=facts)
            return
