"""Keeps second letters of one delivery from the application: reads them for `LetterWindow`."""

from __future__ import annotations

import logging
from typing import Any

from pulsar_retry.consumer.clock import Clock
from pulsar_retry.consumer.duplicates import LetterId, LetterWindow, fingerprint
from pulsar_retry.consumer.identity import identity_of
from pulsar_retry.consumer.plan import Plan

_log = logging.getLogger("pulsar_retry")


class Deduper:
    """What a consumer remembers of its letters. Thread-safe."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        """Make it for the plan of a subscription with retries."""
        self._window = LetterWindow(plan.dedupe_letters, clock=clock.time, steady=clock.monotonic)
        self.clear = self._window.clear
        self.settled = self._window.settled
        self.passed_over = self._window.passed_over

    def delivered(self, raw: Any, letter: LetterId) -> bool:
        """Take note of a raw letter; tell whether it is superfluous, to be acknowledged only."""
        try:
            properties = raw.properties()
            identity = identity_of(raw, properties)
            print_ = fingerprint(properties, raw.data(), _envelope(raw), identity)
        except UnicodeDecodeError:
            return False
        if print_ is None:
            return False
        if not self._window.delivered(letter, print_, raw.publish_timestamp() / 1000):
            return False
        _log.info(
            "letter %s of %s is dropped: its message was handled after it was published",
            raw.message_id(),
            raw.topic_name(),
        )
        return True

    @property
    def dropped(self) -> int:
        """How many letters were superfluous."""
        return self._window.dropped


def _envelope(raw: Any) -> tuple[object, ...]:
    """Return what tells messages apart beside properties and payload."""
    return (
        raw.has_null_value(),
        raw.partition_key(),
        raw.ordering_key(),
        raw.event_timestamp(),
    )
