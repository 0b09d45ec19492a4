"""The errors that the Spark part raises while rows are written or read.

Spark passes a task's error to the driver as text only. So each error starts with a slug that does
not change: ``[PULSAR_SINK_TIMEOUT] no receipt …``. Wrong options are a `pulsar_retry.ConfigError`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pulsar_retry.errors import PulsarRetryError

__all__ = ["PulsarFailuresError", "PulsarSourceError", "refused", "slug_of"]

#: Why a broker may give no receipt, and clients no reason.
NO_RECEIPT = (
    "the broker is away or busy, or it takes no rows: one is larger than the topic's "
    "maxMessageSize, the namespace's backlog quota is exceeded, or the role may no longer write"
)

#: What to do about pulsar-client's results whose names do not say it.
_ADVICE = {
    "IncompatibleSchema": (
        "the topic has a schema that it compares with that of the rows, and rows are published as "
        "bytes without one: encode payloads as the schema says, such as with to_avro, and set "
        "value.schema=topic"
    ),
    "MessageTooBig": "the broker's maxMessageSize is less than max_message_bytes",
    "ProducerBusy": (
        "the topic has as many producers as its maxProducers or the namespace's "
        "maxProducersPerTopic allows, and each task needs one, or up to three for delayed rows"
    ),
    "Timeout": NO_RECEIPT,
}


def slug_of(name: str) -> str:
    """Return the slug for the name of one of pulsar-client's errors."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


class PulsarFailuresError(PulsarRetryError):
    """Rows could not be written. The task fails, and Spark runs it again if it is set to do so.

    Attributes:
        slug: The cause in a word or two: upper case, with underscores.
        text: What happened, and what to do. It contains no payload and no secret.
    """

    prefix: ClassVar[str] = "PULSAR_SINK"

    def __init__(self, slug: str, text: str) -> None:
        super().__init__(slug, text)  # copying and pickling need both arguments
        self.slug = slug
        self.text = text

    def __str__(self) -> str:
        return f"[{self.prefix}_{self.slug}] {self.text}"


class PulsarSourceError(PulsarFailuresError):
    """Rows could not be read. Its text starts with ``[PULSAR_SOURCE_<SLUG>]``.

    The slugs are:

    - ``DATA_LOSS``: the broker has deleted messages that were to be read.
    - ``SUBSCRIPTION_BUSY``: another query reads with the same subscription.
    - ``UNREADABLE``: there are encrypted messages, and no key for them.
    - ``TIMEOUT``: the broker does not answer, or has messages but delivers none.
    - others: pulsar-client's names for its errors, such as ``AUTHORIZATION_ERROR``.
    """

    prefix: ClassVar[str] = "PULSAR_SOURCE"


def refused(result: str, what: str) -> PulsarFailuresError:
    """Return the error for the name of one of pulsar-client's results or errors."""
    advice = f": {_ADVICE[result]}" if result in _ADVICE else ""
    return PulsarFailuresError(
        slug_of(result), f"{what} could not be written: pulsar-client says {result}{advice}"
    )
