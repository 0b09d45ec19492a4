"""How to reach a cluster, by Pulsar's binary protocol and by its REST API."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.transport import tls_context
from pulsar_retry.client import Client
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.reaching import check_broker
from pulsar_retry.runtime.token import authentication

#: The scheme and port of the REST API for each scheme of the binary protocol.
_ADMIN = {"pulsar": ("http", 8080), "pulsar+ssl": ("https", 8443)}
_SCHEMES = (*_ADMIN, "http", "https")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@attrs.frozen(kw_only=True)
class Cluster:
    """The addresses of a cluster, our credentials, and the trusted certificates.

    Its `repr` does not show the token.

    Attributes:
        service_url: The URL that clients connect to, such as ``pulsar://localhost:6650``. Several
            hosts are separated by commas.
        admin_url: The URL of the REST API. By default it is the first host at port 8080, or 8443
            with TLS.
        token: A token, or a function that returns the current one; None if there is none.
        token_file: A file that contains the token. It is read again at each use.
        tls_trust_certs_file: The trusted certificates. If it is None, those of certifi are used for
            brokers, and those of the system for the REST API.
        tls_allow_insecure: Whether any certificate is accepted, for any host.
    """

    service_url: str = attrs.field(default="pulsar://localhost:6650", kw_only=False)
    # Type checkers other than mypy do not know that attrs drops the underscore.
    _admin_url: str | None = attrs.field(default=None, alias="admin_url")
    token: str | Callable[[], str | None] | None = attrs.field(default=None, repr=False)
    token_file: str | None = None
    tls_trust_certs_file: str | None = None
    tls_allow_insecure: bool = False

    def __attrs_post_init__(self) -> None:
        if not _is_url(self.service_url, _SCHEMES):
            accepted = "a URL such as pulsar://localhost:6650"
            raise ConfigError.bad("service_url", self.service_url, accepted)
        if not _is_url(self.admin_url, {"http", "https"}):
            accepted = "a URL such as http://localhost:8080"
            raise ConfigError.bad("admin_url", self.admin_url, accepted)
        if self.token is not None and self.token_file is not None:
            raise ConfigError("token_file: expected a token or a file, not both")

    @property
    def admin_url(self) -> str:
        """The root URL of the REST API."""
        return self._admin_url or _usual_admin_url(self.service_url)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Cluster:
        """Make a cluster from the environment.

        The variables are ``PULSAR_SERVICE_URL``, ``PULSAR_ADMIN_URL``, ``PULSAR_TOKEN``,
        ``PULSAR_TOKEN_FILE``, ``PULSAR_TLS_TRUST_CERTS_FILE`` and ``PULSAR_TLS_ALLOW_INSECURE``
        (``true`` or ``false``). A variable that is not set has its default.

        Raises:
            ConfigError: a variable is invalid.
        """
        names = ("service_url", "admin_url", "token", "token_file", "tls_trust_certs_file")
        given: dict[str, Any] = {
            name: text for name in names if (text := environment.get(f"PULSAR_{name.upper()}"))
        }
        insecure = environment.get("PULSAR_TLS_ALLOW_INSECURE", "").strip().lower()
        if insecure not in _TRUE + _FALSE:
            raise ConfigError.bad("PULSAR_TLS_ALLOW_INSECURE", insecure, "true or false")
        return cls(**given, tls_allow_insecure=insecure in _TRUE)

    def read_token(self) -> str | None:
        """Return the current token; None if there is none.

        Raises:
            ConfigError: the file cannot be read, or is empty.
        """
        if self.token_file is None:
            return self.token() if callable(self.token) else self.token
        try:
            token = Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token_file={self.token_file!r} cannot be read: {error}") from None
        if not token:
            raise ConfigError.bad("token_file", self.token_file, "a file that holds a token")
        return token

    def check(self) -> None:
        """Check that a broker answers. Blocks for 4 s at most.

        Raises:
            ConfigError: the token or the certificates cannot be read.
            UnreachableError: no broker answers, or it refuses the token.
        """
        check_broker(self.service_url, self)

    def client(self, *, operation_timeout_seconds: int = 30, check: bool = True) -> Client:
        """Open a client, after a check that a broker answers. The caller closes the client.

        pulsar-client's log is switched off: errors contain the information.

        Args:
            operation_timeout_seconds: As in `pulsar.Client`.
            check: Whether to check. pulsar-client itself connects only when something is opened.

        Raises:
            ConfigError: the token or the certificates cannot be read.
            UnreachableError: see `check`.
        """
        if self.tls_trust_certs_file is not None:
            tls_context(self)  # pulsar-client would report a failed authentication
        if check:
            self.check()
        return Client(
            self.service_url,
            operation_timeout_seconds=operation_timeout_seconds,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
            authentication=authentication(self.read_token, renew=not isinstance(self.token, str)),
            tls_trust_certs_file_path=self.tls_trust_certs_file,
            tls_allow_insecure_connection=self.tls_allow_insecure,
            tls_validate_hostname=not self.tls_allow_insecure,
        )

    def admin(self) -> AdminClient:
        """Return a client of the REST API."""
        return AdminClient(self)


def _usual_admin_url(service_url: str) -> str:
    """Return the usual URL of the REST API, on the first host."""
    scheme, _, hosts = service_url.partition("://")
    first = hosts.split(",", 1)[0].split("/", 1)[0]
    if scheme not in _ADMIN:
        return f"{scheme}://{first}"
    host = urllib.parse.urlsplit(f"//{first}").hostname or ""
    kind, port = _ADMIN[scheme]
    return f"{kind}://[{host}]:{port}" if ":" in host else f"{kind}://{host}:{port}"


def _is_url(text: object, schemes: Collection[str]) -> bool:
    """Tell whether *text* is a URL with one of *schemes* and with valid hosts and ports."""
    if not isinstance(text, str):
        return False
    try:
        parts = urllib.parse.urlsplit(text)
        hosts = [urllib.parse.urlsplit(f"//{each}") for each in parts.netloc.split(",")]
        # `port` raises if it is not a number.
        return parts.scheme in schemes and all(each.hostname and each.port != 0 for each in hosts)
    except ValueError:
        return False
