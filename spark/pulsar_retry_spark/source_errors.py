"""What reading raises."""

from __future__ import annotations

from typing import ClassVar

from pulsar_retry_spark.errors import PulsarFailuresError

__all__ = ["PulsarSourceError"]


class PulsarSourceError(PulsarFailuresError):
    """Rows could not be read. Starts with ``[PULSAR_SOURCE_<SLUG>]``.

    - ``DATA_LOSS``: a stream has not read what the broker has deleted.
    - ``SUBSCRIPTION_BUSY``: another query reads by the same subscription.
    - ``TIMEOUT``: the broker has messages but gives none.
    """

    prefix: ClassVar[str] = "PULSAR_SOURCE"
