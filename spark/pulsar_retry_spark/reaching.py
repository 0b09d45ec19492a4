"""Is there a Pulsar at `service.url`, and does it take our token? Asked once, on the driver.

Otherwise each task and each of its attempts would find out, by pulsar-client's time-outs.
"""

from __future__ import annotations

import time

import attrs

from pulsar_retry.errors import ConfigError, UnreachableError
from pulsar_retry.replay.reaching import check_broker
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError

#: Seconds in which it has to be there: a broker that restarts may take a while.
PATIENCE = 5.0
#: Seconds between two tries.
_PAUSE = 0.2

#: What was reached: a process asks once.
_reached: set[ClusterConnection] = set()


@attrs.frozen
class _Endpoint:
    """A connection as `check_broker` takes it."""

    connection: ClusterConnection
    admin_url: str = ""

    @property
    def tls_trust_certs_file(self) -> str | None:
        return self.connection.trust_certs_file

    @property
    def tls_allow_insecure(self) -> bool:
        return self.connection.allow_insecure

    def read_token(self) -> str | None:
        return self.connection.read_token()


def reach(
    connection: ClusterConnection, kind: type[PulsarFailuresError] = PulsarFailuresError
) -> None:
    """See that the cluster can be reached. Takes milliseconds, and 10 seconds at most.

    Where only workers have the token, nothing can be asked here.

    Raises:
        PulsarFailuresError: of *kind*, ``CONNECT_ERROR``: no broker answers at any of the hosts, or
            it refuses the token. The text names the URL and the cause.
    """
    if connection in _reached:
        return
    endpoint, validate = _Endpoint(connection), connection.validate_hostname
    give_up_at = time.monotonic() + PATIENCE
    while True:
        try:
            check_broker(connection.service_url, endpoint, validate_hostname=validate)
        except PulsarFailuresError:  # there is no token
            break
        except (ConfigError, UnreachableError) as error:
            if time.monotonic() + _PAUSE > give_up_at:
                raise kind("CONNECT_ERROR", str(error)) from None
        else:
            break
        time.sleep(_PAUSE)
    _reached.add(connection)
