"""What a client of the REST API has to know of a cluster."""

from __future__ import annotations

from typing import Protocol


class Endpoint(Protocol):
    """Where the REST API is, who we are, and which certificates are trusted.

    `pulsar_retry.replay.Cluster` is one.
    """

    @property
    def admin_url(self) -> str:
        """The root of the API, such as ``http://localhost:8080``."""

    @property
    def tls_trust_certs_file(self) -> str | None:
        """The certificates that are trusted; None: the system's."""

    @property
    def tls_allow_insecure(self) -> bool:
        """Whether any certificate will do."""

    def read_token(self) -> str | None:
        """Return the token of now; None: there is none."""
        ...
