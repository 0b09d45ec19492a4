"""The few questions to the REST API of a cluster that pulsar-client can't ask."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import attrs

from pulsar_retry.wire.names import TopicName
from pulsar_retry_spark.connection import Connection

#: Seconds to wait for an answer.
_TIMEOUT = 10


@attrs.frozen
class Admin:
    """The REST API of a cluster.

    Attributes:
        url: Where it is, such as http://localhost:8080.
        connection: Who we are, and which certificates are trusted.
    """

    url: str
    connection: Connection

    def get(self, path: str) -> Any:
        """Return the answer to GET /admin/v2/*path*; None: there is none, or no such thing.

        Raises:
            OSError: the API was not reached, or refuses.
            PulsarFailuresError: there is no token where there should be one.
        """
        request = urllib.request.Request(f"{self.url.rstrip('/')}/admin/v2/{path}")  # noqa: S310 - the user's
        token = self.connection.read_token()
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT, context=self._tls()) as response:  # noqa: S310 - likewise
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:  # noqa: PLR2004 - not found
                    return None
                raise
        return json.loads(content) if content else None

    def topic(self, topic: str, policy: str) -> Any:
        """Return what applies to *topic*, its own policy or the namespace's or the broker's."""
        name = TopicName.parse(topic)
        path = f"{name.domain}/{name.tenant}/{name.namespace}/{name.local}"
        return self.get(f"{path}/{policy}?applied=true")

    def _tls(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        context = ssl.create_default_context(cafile=self.connection.trust_certs_file)
        if self.connection.allow_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
