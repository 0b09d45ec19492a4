"""Messages to the user while a new client does not reach its brokers."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import pulsar

_log = logging.getLogger("pulsar_retry")

#: Seconds after which the hosts are checked, and the maximum seconds for the check.
_AFTER, _PATIENCE = 1.0, 3.0


class Contact:
    """Records whether a client has ever reached its brokers. Thread-safe.

    pulsar-client tries for the whole operation time-out, 30 s, because a broker may be about to
    start. Then it reports a time-out without the URL or the cause.
    """

    def __init__(self, service_url: str) -> None:
        self._url = service_url
        self._is_made = False
        self._lock = threading.Lock()
        self._problem: str | None = None

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Log a warning if nothing is reached for some seconds; add the URL to errors.

        The warning is logged once for each client, and never after the client has reached a broker.
        """
        if self._is_made:
            yield
            return
        later = threading.Timer(_AFTER, self._look)
        later.name, later.daemon = "pulsar-retry-contact", True
        later.start()
        try:
            yield
            self._is_made = True
        except (pulsar.Timeout, pulsar.ConnectError) as error:
            cause = f" was not reached: {self._problem}" if self._problem else ""
            error.args = (f"{error}: {self._url}{cause}",)
            raise
        except pulsar.PulsarException:
            self._is_made = True  # a broker has answered with a refusal
            raise
        finally:
            later.cancel()

    def _look(self) -> None:
        """Check the hosts, and log the result."""
        from pulsar_retry.runtime.reaching import REFUSES, problem_at  # noqa: PLC0415 - for TLS

        with self._lock:
            if self._problem is not None or self._is_made:
                return
            problem = problem_at(self._url, patience=_PATIENCE)
            # The check does not have the token of pulsar-client, so a refusal says nothing.
            self._problem = "" if problem.startswith(REFUSES) else problem
        if self._problem and not self._is_made:
            text = "%s was not reached: %s. pulsar-client keeps trying for a while"
            _log.warning(text, self._url, self._problem)
