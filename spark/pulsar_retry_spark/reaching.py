"""Is there a Pulsar at `service.url`, and does it take our token? Asked once, on the driver.

pulsar-client goes on trying for half a minute, in each task and in each of its attempts, and says
no more than `Timeout` of a token that the broker refuses. So the first message of its protocol is
sent by hand, and the answer is read. Only what is certain is an error: what is unclear is left to
pulsar-client.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from itertools import islice

import certifi

from pulsar_retry_spark.connection import Connection
from pulsar_retry_spark.errors import PulsarFailuresError

#: Seconds in which one of the hosts has to accept a connection: one that restarts may take a while.
PATIENCE = 5.0
#: Seconds between two tries, and seconds to wait for an answer.
_PAUSE, _ANSWER = 0.2, 5.0

#: Numbers of Pulsar's protocol: two types of a command, and the text of an error.
_CONNECT, _ERROR, _MESSAGE = 2, 14, 3
#: Of Protocol Buffers: what a field holds, and the bit that says that a number goes on.
_NUMBER, _BYTES, _MORE = 0, 2, 128
#: Bytes of a frame before its command: the sizes of both.
_HEAD = 8

#: What was reached: a process asks once.
_reached: set[Connection] = set()


def reach(connection: Connection, kind: type[PulsarFailuresError] = PulsarFailuresError) -> None:
    """See that the cluster can be reached. Takes milliseconds, and some 10 seconds at most.

    Raises:
        PulsarFailuresError: of *kind*: there is no broker at any of the hosts
            (``CONNECT_ERROR``), or it refuses the token (``AUTHENTICATION_ERROR``). The text names
            the URL.
    """
    if connection in _reached:
        return
    url = connection.service_url
    scheme, _, rest = url.partition("://")
    default = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}[scheme]
    hosts = [_host(each, default) for each in rest.partition("/")[0].split(",")]
    try:
        connected, name = _connected(hosts)
    except OSError as error:
        raise kind("CONNECT_ERROR", f"no Pulsar was reached at {url}: {error}") from None
    with connected:
        if scheme.startswith("pulsar"):
            _introduce(connected, connection, name if scheme == "pulsar+ssl" else None, kind)
    _reached.add(connection)


def _host(text: str, default: int) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port or default)


def _connected(hosts: list[tuple[str, int]]) -> tuple[socket.socket, str]:
    """Return a connection to one of the hosts, and its name; an OSError says why there is none."""
    give_up_at = time.monotonic() + PATIENCE
    while True:
        reasons = []
        for name, port in hosts:
            left = give_up_at - time.monotonic()
            try:
                return socket.create_connection((name, port), max(0.1, left / len(hosts))), name
            except socket.gaierror as error:
                reasons.append(f"the host {name} is not known ({error.strerror})")
            except OSError as error:
                reasons.append(f"{name}:{port}: {error.strerror or error}".lower())
        if time.monotonic() + _PAUSE > give_up_at or all("not known" in each for each in reasons):
            raise OSError(", ".join(reasons))
        time.sleep(_PAUSE)


def _introduce(
    connected: socket.socket,
    connection: Connection,
    secure_name: str | None,
    kind: type[PulsarFailuresError],
) -> None:
    """Say who we are, and raise an error if the broker says that it does not like that."""
    connected.settimeout(_ANSWER)
    try:
        token = connection.read_token()
        if secure_name is not None:
            connected = _context(connection).wrap_socket(connected, server_hostname=secure_name)
        with connected:
            connected.sendall(_command(token))
            answer = _answer(connected)
    except (OSError, ValueError, PulsarFailuresError):
        # A certificate, for example, which pulsar-client may judge differently; or only workers
        # have the token.
        return
    if answer.startswith(b"HTTP/"):
        text = f"no Pulsar was reached at {connection.service_url}: a web server answers there"
        raise kind("CONNECT_ERROR", text)
    fields = dict(_fields(answer))
    error = fields.get(_ERROR)
    if isinstance(error, bytes):
        said = dict(_fields(error)).get(_MESSAGE, b"")
        reason = said.decode("utf-8", "replace") if isinstance(said, bytes) else ""
        whom = "the token" if token else "clients without a token"
        text = f"{connection.service_url} refuses {whom} (auth.*): {_plain(reason)}"
        raise kind("AUTHENTICATION_ERROR", text)


def _context(connection: Connection) -> ssl.SSLContext:
    """Return how pulsar-client would secure the connection: the token goes to nobody else."""
    context = ssl.create_default_context(cafile=connection.trust_certs_file or certifi.where())
    context.check_hostname = connection.validate_hostname and not connection.allow_insecure
    if connection.allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    return context


def _command(token: str | None) -> bytes:
    """Return the command CONNECT in a frame: client version, protocol version, token."""
    connect = _bytes(1, b"pulsar-retry-spark") + b"\x20\x13"
    if token is not None:
        connect += _bytes(3, token.encode()) + _bytes(5, b"token")
    command = b"\x08" + bytes([_CONNECT]) + _bytes(_CONNECT, connect)
    return struct.pack(">II", len(command) + 4, len(command)) + command


def _answer(connected: socket.socket) -> bytes:
    """Return the command that comes back, without its frame; of a web server, how it begins."""
    with connected.makefile("rb") as stream:
        head = stream.read(_HEAD)
        if head.startswith(b"HTTP/"):
            return head
        if len(head) < _HEAD:
            return b""
        return stream.read(min(struct.unpack(">II", head)[1], 1 << 16))


def _bytes(field: int, value: bytes) -> bytes:
    """Return a field of Protocol Buffers that holds bytes."""
    size, sizes = len(value), bytearray()
    while size >= _MORE:
        sizes.append(size % _MORE | _MORE)
        size //= _MORE
    return bytes([field << 3 | _BYTES, *sizes, size]) + value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give number and value of a message's fields, as far as they are numbers and bytes."""
    rest = iter(message)

    def number() -> int:
        value = shift = 0
        for byte in rest:
            value |= byte % _MORE << shift
            if byte < _MORE:
                break
            shift += 7
        return value

    while key := number():
        kind = key & 7
        if kind not in (_NUMBER, _BYTES):
            return
        value = number()
        yield key >> 3, value if kind == _NUMBER else bytes(islice(rest, value))


def _plain(text: str) -> str:
    """Return a broker's text as one line, without what looks like a token."""
    line = text.strip().partition("\n")[0]
    return re.sub(r"\beyJ[\w.-]+", "…", line)[:300] or "it says no more"
