"""Waits for a broker that is away; turns a broker's refusal into an error of this package."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pulsar

from pulsar_retry_spark.errors import PulsarSourceError, slug_of

#: The errors of pulsar-client while a broker stops, is away or starts. The broker itself sends some
#: of them while it closes its topics, or before it has reached its metadata.
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

#: Seconds that a broker may be away. If it was away for a minute, pulsar-client may take up to a
#: minute more to reconnect.
PATIENCE = 180.0

#: Seconds between two tries.
_PAUSE = 0.2

_Result = TypeVar("_Result")


def patiently(call: Callable[[], _Result]) -> _Result:
    """Return what *call* returns; while the broker is away, wait and call again.

    Raises:
        pulsar.PulsarException: the broker refuses, or has been away for `PATIENCE`.
    """
    give_up_at = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except BROKER_IS_AWAY:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(_PAUSE)


def last_message_id(consumer: Any) -> Any:
    """Return the id of the last entry of a consumer's partition; None if it has no entry.

    Raises:
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    found = consumer.get_last_message_id()
    if found.entry_id() >= 0:
        return found
    if not consumer.is_connected():  # pulsar-client then reports every topic as empty
        raise pulsar.NotConnected
    return None


@contextmanager
def closed(reader: pulsar.Reader) -> Iterator[pulsar.Reader]:
    """Give *reader*, and close it: with what it has read, nothing depends on whether that works.

    It does not if the connection breaks meanwhile.
    """
    try:
        yield reader
    finally:
        with suppress(pulsar.PulsarException):
            reader.close()


@contextmanager
def refusals_of(what: str) -> Iterator[None]:
    """Turn pulsar-client's errors into `PulsarSourceError`; *what* says what was not done.

    Raises:
        PulsarSourceError: pulsar-client has raised an error.
    """
    try:
        yield
    except pulsar.PulsarException as error:
        name = type(error).__name__
        raise PulsarSourceError(slug_of(name), f"{what}: pulsar-client says {name}") from error
