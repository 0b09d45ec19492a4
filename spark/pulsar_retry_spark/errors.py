"""What the Spark part raises while rows are written or read.

Spark hands a task's error to the driver as text alone, so each starts with a slug that does not
change: ``[PULSAR_SINK_TIMEOUT] no receipt …``. Wrong options are a `pulsar_retry.ConfigError`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pulsar_retry.errors import PulsarRetryError

__all__ = ["PulsarFailuresError", "PulsarSourceError", "slug_of"]


def slug_of(name: str) -> str:
    """Return the slug for one of pulsar-client's names for what went wrong."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


class PulsarFailuresError(PulsarRetryError):
    """Rows could not be written. The task fails, and Spark runs it again where it may.

    Attributes:
        slug: What happened, in a word or two: upper case, with underscores.
        text: What happened, and what to do. Holds no payload and no secret.
    """

    prefix: ClassVar[str] = "PULSAR_SINK"

    def __init__(self, slug: str, text: str) -> None:
        super().__init__(slug, text)  # a copy is made from these
        self.slug = slug
        self.text = text

    def __str__(self) -> str:
        return f"[{self.prefix}_{self.slug}] {self.text}"


class PulsarSourceError(PulsarFailuresError):
    """Rows could not be read. Starts with ``[PULSAR_SOURCE_<SLUG>]``.

    - ``DATA_LOSS``: a stream has not read what the broker has deleted.
    - ``SUBSCRIPTION_BUSY``: another query reads by the same subscription.
    - ``TIMEOUT``: the broker does not answer, or has messages but gives none.
    - others are pulsar-client's names for its errors, such as ``AUTHORIZATION_ERROR``.
    """

    prefix: ClassVar[str] = "PULSAR_SOURCE"
