"""What reading raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pulsar

from pulsar_retry_spark.errors import PulsarFailuresError, slug_of

__all__ = ["BROKER_IS_AWAY", "PulsarSourceError", "refusals_of"]

#: What pulsar-client raises while a broker stops, is away or starts. The broker's own errors come
#: from one that is closing its topics or has not yet reached its metadata.
BROKER_IS_AWAY = (
    pulsar.BrokerMetadataError,
    pulsar.BrokerPersistenceError,
    pulsar.ConnectError,
    pulsar.NotConnected,
    pulsar.ServiceUnitNotReady,
    pulsar.Timeout,
    pulsar.TooManyLookupRequestException,
    pulsar.UnknownError,
)


class PulsarSourceError(PulsarFailuresError):
    """Rows could not be read. Starts with ``[PULSAR_SOURCE_<SLUG>]``.

    - ``DATA_LOSS``: a stream has not read what the broker has deleted.
    - ``SUBSCRIPTION_BUSY``: another query reads by the same subscription.
    - ``TIMEOUT``: the broker does not answer, or has messages but gives none.
    - others are pulsar-client's names for its errors, such as ``AUTHORIZATION_ERROR``.
    """

    prefix: ClassVar[str] = "PULSAR_SOURCE"


@contextmanager
def refusals_of(what: str) -> Iterator[None]:
    """Turn pulsar-client's errors into ours; *what* was not done.

    Raises:
        PulsarSourceError: pulsar-client has raised something.
    """
    try:
        yield
    except pulsar.PulsarException as error:
        name = type(error).__name__
        raise PulsarSourceError(slug_of(name), f"{what}: pulsar-client says {name}") from error
