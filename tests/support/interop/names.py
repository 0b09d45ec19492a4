"""Where the letters of a test's subscription are, for every client."""

from __future__ import annotations

from typing import Any

from reading import SUBSCRIPTION


def retry_topic(topic: str) -> str:
    """Return where the letters of *topic* go."""
    return f"{topic}-{SUBSCRIPTION}-RETRY"


def dead_letter_topic(topic: str) -> str:
    """Return where the dead letters of *topic* go."""
    return f"{topic}-{SUBSCRIPTION}-DLQ"


def is_settled(admin: Any, topic: str) -> bool:
    """Tell whether nothing is left; a letter is written before its original is acknowledged."""
    return all(admin.backlog(name, SUBSCRIPTION) == 0 for name in (topic, retry_topic(topic)))
