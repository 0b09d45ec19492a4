"""Where messages are pushed to: the endpoint's URL, and what it may resolve to. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Self
from urllib.parse import quote, urlsplit

import attrs

from pulsar_retry.errors import ConfigError

_PORTS = {"https": 443, "http": 80}
_SAFE = "/?:@!$&'()*+,;=-._~%[]"
_ACCEPTED = "an https:// URL; http:// to loopback, or with allow_http=True"
#: Characters that a URL must not contain unencoded; urlsplit silently drops some of them.
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
#: In networks without IPv4, these addresses stand for those of IPv4 (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Names of services in clusters may contain an underscore.
_NAME = re.compile(r"[0-9a-z_-]+(\.[0-9a-z_-]+)*\.?")


@attrs.frozen
class PushEndpoint:
    """The parts of a push endpoint's URL.

    Its `str` is only the origin, because it is logged, and paths and queries often contain secrets.

    Attributes:
        url: The URL as it was given. It is the default audience of tokens.
        is_tls: Whether it is ``https``.
        host: The host, without brackets and in ASCII.
        port: The port.
        target: Path and query, percent-encoded.
    """

    url: str = attrs.field(repr=False)
    is_tls: bool
    host: str
    port: int
    target: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, url: object, *, allow_http: bool = False) -> Self:
        """Return *url* as an endpoint.

        Args:
            url: An ``https://`` URL. ``http://`` is accepted if the host is loopback, as in
                ``http://localhost:8080/push``, or with *allow_http*.
            allow_http: Whether ``http://`` is accepted for every host.

        Raises:
            ConfigError: the URL is invalid. The message shows no more of it than necessary.
        """
        if not isinstance(url, str):
            raise ConfigError.bad("endpoint", url, _ACCEPTED)
        if _CONTROL.search(url):
            shown = "a URL with blanks or control characters"
            raise ConfigError.bad("endpoint", shown, _ACCEPTED)
        try:
            parts = urlsplit(url)
            port = parts.port
            # Percent-encode non-ASCII characters; what is encoded already is not changed.
            path, query = (quote(each, safe=_SAFE) for each in (parts.path or "/", parts.query))
        except ValueError:  # a UnicodeError is one
            raise ConfigError.bad("endpoint", "a URL that cannot be read", _ACCEPTED) from None
        host, scheme = parts.hostname or "", parts.scheme
        name, shown = host if _is_address(host) else _host_name(host), f"{scheme}://{host}"
        if scheme not in _PORTS or not name or port == 0:
            raise ConfigError.bad("endpoint", shown, _ACCEPTED)
        if parts.username is not None or parts.password is not None or parts.fragment:
            accepted = _ACCEPTED + ", without user, password and fragment"
            raise ConfigError.bad("endpoint", shown, accepted)
        if scheme == "http" and not (allow_http or is_loopback_name(host)):
            raise ConfigError.bad("endpoint", shown, _ACCEPTED)
        target = f"{path}?{query}" if query else path
        return cls(url, scheme == "https", name, port or _PORTS[scheme], target.encode())

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        """``https`` or ``http``."""
        return "https" if self.is_tls else "http"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def _host_name(text: str) -> str:
    """Return a host name as DNS needs it, in ASCII; empty if *text* is not one."""
    try:
        name = text.encode("idna").decode("ascii")
    except UnicodeError:
        return ""
    return name if _NAME.fullmatch(name) else ""


def is_loopback_name(host: str) -> bool:
    """Tell whether *host* by itself means this machine, without a look-up."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def refusal(host: str, address: str) -> str | None:
    """Return why *address*, to which *host* resolves, is not connected to; None if it is.

    A loopback name may be used without TLS, so only loopback may answer for it. No other name leads
    to this machine, nor to link-local addresses, where clouds give secrets to machines.
    """
    try:
        actual: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "not an IP address"
    if actual in _NAT64:
        actual = ipaddress.IPv4Address(actual.packed[-4:])
    actual = getattr(actual, "ipv4_mapped", None) or actual
    if is_loopback_name(host):
        is_fit = actual.is_loopback
        return None if is_fit else "not a loopback address, although its name is a loopback name"
    if actual.is_loopback:
        return "a loopback address behind another name"
    if actual.is_link_local:
        return "a link-local address"
    if actual.is_multicast or actual.is_unspecified or actual.is_reserved:
        return "not the address of a host"
    return None
