"""The topics of the letters of a test's subscription, for every client."""

from __future__ import annotations

from typing import Any

from support.reading import SUBSCRIPTION


def retry_topic(topic: str) -> str:
    """Return the retry topic of *topic*."""
    return f"{topic}-{SUBSCRIPTION}-RETRY"


def dead_letter_topic(topic: str) -> str:
    """Return the dead-letter topic of *topic*."""
    return f"{topic}-{SUBSCRIPTION}-DLQ"


def is_settled(admin: Any, topic: str) -> bool:
    """Return whether nothing is left; a letter is published before its original is acknowledged."""
    return all(admin.backlog(name, SUBSCRIPTION) == 0 for name in (topic, retry_topic(topic)))
