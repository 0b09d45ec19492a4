"""The id of a row that has none of its own, computed in Python. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pulsar_retry.wire import properties as wire
from pulsar_retry_spark.frames.batch import Origin


def identity(
    payload: bytes | None, key: str | None, origin: Origin | None, properties: Mapping[str, str]
) -> str:
    """Return an id that is the same for the same row in each run of any job.

    It is made from the row's origin, its payload (unless the message id is known), key, reason and
    stage. *origin* has the message id that `decoding.identities` returns, because
    `identity.with_dedupe_id` computes the same id in SQL.
    """
    topic, message_id, source = origin or (None, None, None)
    content = None if message_id or payload is None else hashlib.sha256(payload).hexdigest()
    parts = (
        topic,
        message_id,
        source,
        content,
        key,
        properties.get(wire.FAILURE_REASON),
        properties.get(wire.FAILURE_STAGE),
    )
    text = "\n".join([part or "" for part in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
