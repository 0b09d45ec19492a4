"""The logger of this package: what the application's handlers and filters raise stops nothing.

Messages are settled, and the end of a subscription is reported, although that cannot be logged.
"""

from __future__ import annotations

import logging

#: Writes the exceptions of the application's handlers and filters to standard error.
BROKEN = logging.Handler()

_log = logging.getLogger("pulsar_retry")


def _handle(record: logging.LogRecord) -> None:
    try:
        type(_log).handle(_log, record)
    except Exception:  # noqa: BLE001 - it is the application's own code that fails
        BROKEN.handleError(record)


_log.handle = _handle  # type: ignore[method-assign]
