"""Where messages are pushed to: the endpoint's URL, and the addresses that may be connected to.

The guard protects against server-side request forgery. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Self
from urllib.parse import quote, urlsplit

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import flag

_PORTS = {"https": 443, "http": 80}
_SAFE = "/?:@!$&'()*+,;=-._~%[]"
_ACCEPTED = "an https:// URL; http:// to loopback, or with allow_http=True"
#: Characters that a URL must not contain unencoded; urlsplit silently drops some of them.
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
#: Names of services in clusters may contain an underscore.
_NAME = re.compile(r"[0-9a-z_-]+(\.[0-9a-z_-]+)*")


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
        if not isinstance(url, str) or _CONTROL.search(url):
            raise ConfigError.bad("endpoint", _kind(url), _ACCEPTED)
        try:
            parts = urlsplit(url)
            port = parts.port
            # Percent-encode non-ASCII characters; what is encoded already is not changed.
            path, query = (quote(each, safe=_SAFE) for each in (parts.path or "/", parts.query))
        except ValueError:  # a UnicodeError is one
            raise ConfigError.bad("endpoint", "a URL that cannot be read", _ACCEPTED) from None
        host, scheme = parts.hostname or "", parts.scheme
        is_host = host_name(host) or _is_address(host)
        if scheme not in _PORTS or not is_host or port == 0:
            raise ConfigError.bad("endpoint", f"{scheme}://{host}", _ACCEPTED)
        if parts.username is not None or parts.password is not None or parts.fragment:
            shown = f"{scheme}://{host}"
            accepted = _ACCEPTED + ", without user, password and fragment"
            raise ConfigError.bad("endpoint", shown, accepted)
        if scheme == "http" and not (allow_http or is_loopback_name(host)):
            raise ConfigError.bad("endpoint", f"http://{host}", _ACCEPTED)
        target = f"{path}?{query}" if query else path
        ascii_host = host if _is_address(host) else host.encode("idna").decode("ascii")
        return cls(url, scheme == "https", ascii_host, port or _PORTS[scheme], target.encode())

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


def host_name(text: str) -> str:
    """Return a host name as DNS needs it, in lower-case ASCII; empty if *text* is not one."""
    try:
        name = text.encode("idna").decode("ascii").lower().removesuffix(".")
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


def _kind(url: object) -> object:
    return "a URL with blanks or control characters" if isinstance(url, str) else url


# -- the guard ------------------------------------------------------------------------------------

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The metadata services of clouds, which give secrets to machines, except the link-local
#: 169.254.169.254.
_METADATA = tuple(
    ipaddress.ip_network(each)
    for each in (
        "fd00:ec2::/32",  # AWS
        "100.100.100.200/32",  # Alibaba Cloud
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle Cloud
        "fd00:c1::/32",  # the same
        "fd20:ce::/32",  # Google Cloud
        "fd00:42::/32",  # Scaleway
    )
)
#: Prefixes of IPv6 addresses that contain an IPv4 address (RFC 6052, and IPv4-mapped).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
#: 6to4 and Teredo. For their addresses, the contained IPv4 address is checked instead.
_TUNNELS = tuple(ipaddress.IPv6Network(each) for each in ("2002::/16", "2001::/32"))
#: These count as private, too: shared by the customers of a provider (RFC 6598), and site-local
#: (RFC 3879).
_SHARED = tuple(ipaddress.ip_network(each) for each in ("100.64.0.0/10", "fec0::/10"))
_ALLOWED = "host names (hooks.example.com, *.example.com), addresses and networks (10.0.0.0/8)"


def _allow(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError.bad("allow", value, _ALLOWED)
    return tuple(map(_entry, value))


def _entry(value: object) -> str:
    """Return an entry of the list in normal form; refuse an entry that cannot match."""
    text = value.strip().rstrip(".") if isinstance(value, str) else ""
    if _network(text) is not None:
        return text
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    if not (name := host_name(name)):
        raise ConfigError.bad("allow", value, _ALLOWED)
    return star + name


def _network(text: str) -> Network | None:
    """Return the network that *text* names, as IPv4 if `_actual` converts its addresses to IPv4.

    None if it is not a network, or if `_actual` converts all of its addresses to others.
    """
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return None
    if isinstance(network, ipaddress.IPv4Network):
        return network
    if network.subnet_of(_MAPPED) or network.subnet_of(_NAT64):
        inner = int(network.network_address) & 0xFFFFFFFF
        return ipaddress.IPv4Network((inner, network.prefixlen - _NAT64.prefixlen))
    return None if any(map(network.subnet_of, _TUNNELS)) else network


@attrs.frozen(kw_only=True)
class Guard:
    """Which endpoints may be connected to. It is checked after each look-up of the name.

    These addresses are refused unless *allow* contains their network: link-local, multicast,
    reserved and unspecified addresses, and the metadata services of clouds. Loopback is accepted
    only by name, in *allow* or in the endpoint itself (``localhost``, ``127.0.0.1``); another name
    that resolves to loopback is refused. A loopback name (``foo.localhost``) that resolves to
    another address is always refused, because it may be used without TLS. The connection is made to
    exactly the address that was checked.

    Attributes:
        allow: Host names (``hooks.example.com``, ``*.example.com``), addresses and networks
            (``10.0.0.0/8``). If there are any, all other endpoints are refused. An entry that
            cannot match, such as one with a port, raises `ConfigError`.
        private: Whether private addresses (10/8, 192.168/16, fc00::/7, …) may be connected to.
    """

    allow: tuple[str, ...] = attrs.field(default=(), converter=_allow)
    private: bool = True
    _networks: tuple[Network, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        """Check, and collect the networks of the list."""
        flag("private", self.private)
        networks = tuple(filter(None, map(_network, self.allow)))
        object.__setattr__(self, "_networks", networks)

    def refusal(self, host: str, address: str) -> str | None:
        """Return why *address*, to which *host* resolves, is refused; None if it is accepted."""
        try:
            actual = _actual(ipaddress.ip_address(address.partition("%")[0]))
        except ValueError:
            return "not an IP address"
        if is_loopback_name(host) and not actual.is_loopback:
            return "not a loopback address, although its name is a loopback name"
        if any(actual in network for network in self._networks):
            return None
        if self.allow and not self._names(host):
            return "not on the allow-list"
        reasons = {
            "a loopback address behind another name": actual.is_loopback
            and not is_loopback_name(host),
            "a link-local or metadata address": actual.is_link_local
            or any(actual in network for network in _METADATA),
            "not the address of a host": not actual.is_loopback
            and (actual.is_multicast or actual.is_unspecified or actual.is_reserved),
            "a private address": not (self.private or actual.is_loopback)
            and (actual.is_private or any(actual in network for network in _SHARED)),
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def _names(self, host: str) -> bool:
        name = host_name(host)
        return any(
            name == each or (each.startswith("*.") and name.endswith(each[1:]))
            for each in self.allow
        )


def _actual(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, or else the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        return inner or address
    return address
