"""Check once, on the driver, that a Pulsar answers at `service.url` and accepts the token.

Otherwise each attempt of each task would find the problem, after pulsar-client's time-outs.
"""

from __future__ import annotations

import time

from pulsar_retry.errors import ConfigError, UnreachableError
from pulsar_retry.replay.reaching import check_broker
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError

#: Seconds in which the broker has to answer, because a restart may take a while.
PATIENCE = 5.0
#: Seconds between two tries.
_PAUSE = 0.2

#: The clusters that were reached: a process checks each only once.
_reached: set[ClusterConnection] = set()


def reach(
    connection: ClusterConnection,
    kind: type[PulsarFailuresError] = PulsarFailuresError,
    *,
    again: bool = False,
) -> None:
    """Check that the cluster can be reached. Takes milliseconds, and at most 10 seconds.

    With *again*, it is checked once more. Nothing is checked here if only the workers have the
    token, or with OAuth2 or a client's certificate.

    Raises:
        PulsarFailuresError: of type *kind*, with the slug ``CONNECT_ERROR``: no broker answers at
            any of the hosts, or it refuses the token. The text names the URL and the cause.
    """
    known = connection in _reached and not again
    if known or connection.oauth2 or connection.certificate_file:
        return
    give_up_at = time.monotonic() + PATIENCE
    while True:
        try:
            check_broker(
                connection.service_url, connection, validate_hostname=connection.validate_hostname
            )
        except PulsarFailuresError:  # there is no token on this machine
            break
        except (ConfigError, UnreachableError) as error:
            if time.monotonic() + _PAUSE > give_up_at:
                raise kind("CONNECT_ERROR", str(error)) from None
        else:
            break
        time.sleep(_PAUSE)
    _reached.add(connection)
