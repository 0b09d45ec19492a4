"""What the name of a retry or dead-letter topic reveals, in any dialect."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Literal

Kind = Literal["retry", "dead_letter"]

_NAME = re.compile(r"(?P<stem>.+)-(?P<suffix>RETRY|DLQ|retry|dlq)")


def kind_of(topic: str) -> Kind | None:
    """Return the kind of a topic, from its name in any dialect; None if it is neither."""
    match = _NAME.fullmatch(topic)
    if match is None:
        return None
    return "retry" if match["suffix"].upper() == "RETRY" else "dead_letter"


def candidates(letter_topic: str, topics: Collection[str]) -> Iterator[tuple[str | None, str]]:
    """Yield the topics and subscriptions that a letter topic can belong to, the likeliest first.

    The name does not show where the topic's name ends and the subscription's begins. The longest
    existing topic is the likeliest. TDMQ's older dialects use only the subscription's name.
    """
    match = _NAME.fullmatch(letter_topic)
    if match is None:
        return
    stem = match["stem"]
    for at in range(len(stem) - 1, stem.rindex("/"), -1):
        if stem[at] == "-" and stem[:at] in topics:
            # If every partition has its own DLQ, the name includes the partition.
            rest = re.sub(r"^partition-[0-9]+-", "", stem[at + 1 :])
            if rest:
                yield stem[:at], rest
    yield None, stem[stem.rindex("/") + 1 :]
