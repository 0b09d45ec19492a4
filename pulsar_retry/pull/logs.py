"""What is logged of a message that failed: never what it holds."""

from __future__ import annotations

import logging
from typing import Any

from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.actions import Action
from pulsar_retry.policy.outcomes import Failure

_log = logging.getLogger("pulsar_retry")


def log_failure(watch: Watch, message: Any, action: Action, failure: Failure, attempt: int) -> None:
    """Log what a handler raised, with its traceback; what it chose is no error."""
    if not _log.isEnabledFor(logging.INFO):
        return
    extra = watch.facts(message, attempt=attempt, reason=getattr(action, "reason", None))
    if failure.cause is None:
        _log.debug("%r: %r", failure.error, action, extra=extra)
    else:
        _log.info("a message failed: %r", action, exc_info=failure.cause, extra=extra)
