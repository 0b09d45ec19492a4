"""What a client of the REST API needs to know about a cluster."""

from __future__ import annotations

from typing import Protocol


class Endpoint(Protocol):
    """The location of the REST API, the token, and the trusted certificates.

    `pulsar_retry.replay.Cluster` is an implementation.
    """

    @property
    def admin_url(self) -> str:
        """The root of the API, such as ``http://localhost:8080``."""

    @property
    def tls_trust_certs_file(self) -> str | None:
        """The file of trusted certificates; None: the system's certificates."""

    @property
    def tls_allow_insecure(self) -> bool:
        """Whether every certificate is accepted."""

    def read_token(self) -> str | None:
        """Return the present token; None if there is none."""
        ...
