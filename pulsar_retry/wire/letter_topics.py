"""What the name of a retry or dead-letter topic tells, in any dialect."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Literal

Kind = Literal["retry", "dead_letter"]

_NAME = re.compile(r"(?P<stem>.+)-(?P<suffix>RETRY|DLQ|retry|dlq)")


def kind_of(topic: str) -> Kind | None:
    """Return what a topic is by its name, in any dialect; None: neither."""
    match = _NAME.fullmatch(topic)
    if match is None:
        return None
    return "retry" if match["suffix"].upper() == "RETRY" else "dead_letter"


def candidates(letter_topic: str, topics: Collection[str]) -> Iterator[tuple[str | None, str]]:
    """Yield the topics and subscriptions that a letter topic may belong to, the likeliest first.

    The name does not tell where the topic's ends and the subscription's begins. The longest topic
    that exists is the likeliest; TDMQ's older dialects name the subscription alone.
    """
    match = _NAME.fullmatch(letter_topic)
    if match is None:
        return
    stem = match["stem"]
    for at in range(len(stem) - 1, stem.rindex("/"), -1):
        if stem[at] == "-" and stem[:at] in topics:
            # Where every partition has a DLQ of its own, its name has the partition's.
            rest = re.sub(r"^partition-[0-9]+-", "", stem[at + 1 :])
            if rest:
                yield stem[:at], rest
    yield None, stem[stem.rindex("/") + 1 :]
