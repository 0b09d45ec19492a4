"""Nacks many messages at pulsar-client: in C++ where that can be had."""

from __future__ import annotations

from collections import deque
from typing import Any

import _pulsar

from pulsar_retry.native.loading import native

#: From how many ids on C++ is used. Fewer take no time, and need not load the extension module.
_MANY = 16


def nack_all(raw: Any, ids: list[Any]) -> None:
    """Have the messages of raw *ids* redelivered to the raw consumer *raw*.

    From Python, each nack gives the interpreter's lock away, and a thread of pulsar-client wakes up
    for each. From C++, they follow each other so closely that it wakes up for many at a time.
    """
    if len(ids) >= _MANY and type(raw) is _pulsar.Consumer:
        module = native().module
        if module is not None:
            module.nack(raw, ids)
            return
    deque(map(raw.negative_acknowledge, ids), maxlen=0)  # faster than a loop
