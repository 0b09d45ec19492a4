"""Check quickly whether there is a Pulsar broker at a URL.

pulsar-client tries for as long as an operation may take, 30 s, and then reports "timeout" or
"connect error" without the URL or the cause.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator

import certifi

from pulsar_retry.admin.transport import Endpoint, tls_context
from pulsar_retry.errors import UnreachableError

_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
#: Types of commands in PulsarApi.proto: the request, and the answer of a broker that refuses it.
_CONNECT, _ERROR = 2, 14
_PROTOCOL = 19
#: The bytes of a size in a frame. A frame has two sizes: its own, and that of the command.
_SIZE = 4
_MOST = 1 << 16

#: The start of a problem's text if the broker itself has reported the problem.
REFUSES = "it refuses the connection"

#: Seconds for all hosts of a URL together.
_PATIENCE = 4.0


def check_broker(service_url: str, endpoint: Endpoint, *, validate_hostname: bool = False) -> None:
    """Check that a broker answers at one of the hosts of a service URL. Blocks for 4 s at most.

    Args:
        service_url: The URL that pulsar-client would connect to.
        endpoint: The trusted certificates and our credentials.
        validate_hostname: Whether the certificate must match the host name. By default
            pulsar-client does not check this either.

    Raises:
        UnreachableError: nothing answers, or not a broker, or it refuses the token.
        ConfigError: the token or the certificates cannot be read.
    """
    scheme = service_url.partition("://")[0]
    token = endpoint.read_token() if scheme.startswith("pulsar") else None
    context = _tls(endpoint, validate_hostname) if scheme in {"pulsar+ssl", "https"} else None
    if problem := problem_at(service_url, token, context, _PATIENCE):
        raise UnreachableError(f"{service_url} was not reached: {problem}")


def _tls(endpoint: Endpoint, validate_hostname: bool) -> ssl.SSLContext:
    """Return a context that is as strict as pulsar-client, which is less strict than Python."""
    context = tls_context(endpoint)
    context.check_hostname = validate_hostname and not endpoint.tls_allow_insecure
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if endpoint.tls_trust_certs_file is None and not endpoint.tls_allow_insecure:
        context.load_verify_locations(certifi.where())  # pulsar-client trusts these
    return context


def problem_at(
    service_url: str,
    token: str | None,
    context: ssl.SSLContext | None,
    patience: float,
) -> str:
    """Return why no broker was reached at any host of a service URL; empty if one was reached.

    It blocks for at most *patience* seconds, for all hosts together.

    Args:
        service_url: The URL that pulsar-client would connect to.
        token: The token of this client.
        context: The trusted certificates, for a URL with TLS.
        patience: Seconds.
    """
    found: list[str] = []

    def look() -> None:
        found.append(_problem_at(service_url, token, context, patience))

    thread = threading.Thread(target=look, name="pulsar-retry-look", daemon=True)
    thread.start()
    thread.join(patience + 0.2)  # the look-up of a host's name has no time-out
    return found[0] if found else "nothing answers"


def _problem_at(
    service_url: str, token: str | None, context: ssl.SSLContext | None, patience: float
) -> str:
    give_up = time.monotonic() + patience
    scheme, _, rest = service_url.partition("://")
    if scheme not in _PORTS:
        return f"{scheme}:// is not a scheme of Pulsar"
    hosts = rest.split("/", 1)[0].split(",")
    hello = _hello(token) if scheme.startswith("pulsar") else None
    problem = ""
    for number, host in enumerate(hosts):
        left = max(0.1, (give_up - time.monotonic()) / (len(hosts) - number))
        try:
            with _connected(host, _PORTS[scheme], context, left) as connection:
                problem = "" if hello is None else _answer(connection, hello, left)
                if not problem:
                    return ""
        except (OSError, UnicodeError) as error:
            problem = _cause(error)
    return problem


@contextlib.contextmanager
def _connected(
    host: str, port: int, context: ssl.SSLContext | None, patience: float
) -> Iterator[socket.socket]:
    parts = urllib.parse.urlsplit(f"//{host}")
    name = parts.hostname or ""
    with socket.create_connection((name, parts.port or port), patience) as plain:
        if context is None:
            yield plain
            return
        with context.wrap_socket(plain, server_hostname=name) as secure:
            yield secure


def _answer(connection: socket.socket, hello: bytes, patience: float) -> str:
    """Return the problem with the answer to *hello*; empty if a broker answers."""
    connection.settimeout(patience)
    connection.sendall(hello)
    answer = b""
    while len(answer) < _size(answer):
        more = connection.recv(_MOST)
        if not more:
            break
        answer += more
        if answer.startswith(b"HTTP/"):
            return "it speaks HTTP, so this is not a service URL"
    command = answer[2 * _SIZE :]
    if not command:
        return "no Pulsar broker answers there" if answer else "it closes the connection"
    if command[:2] == bytes((0x08, _ERROR)):
        return f"{REFUSES}: {_text(command)}"
    return "" if command[0] == 0x08 else "no Pulsar broker answers there"  # noqa: PLR2004 - a tag


def _size(answer: bytes) -> int:
    """Return the size of the answer, which its first four bytes contain."""
    return min(_MOST, _SIZE + int.from_bytes(answer[:_SIZE], "big"))


def _text(command: bytes) -> str:
    """Return the readable text of an ERROR command: its longest run of printable characters."""
    text = command.decode("utf-8", "replace")
    words = "".join(each if each.isprintable() else "\n" for each in text)
    return max(words.split("\n"), key=len).strip() or "without a reason"


def _hello(token: str | None) -> bytes:
    """Return the frame of a CONNECT command, which clients send first."""
    fields = _bytes(1, b"pulsar-retry") + bytes((4 << 3, _PROTOCOL))
    if token is not None:
        fields += _bytes(3, token.encode()) + _bytes(5, b"token")
    command = bytes((1 << 3, _CONNECT)) + _bytes(2, fields)
    sized = len(command).to_bytes(4, "big") + command
    return len(sized).to_bytes(4, "big") + sized


def _bytes(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of Protocol Buffers."""
    length, size = bytearray(), len(content)
    while size > 0x7F:  # noqa: PLR2004 - seven bits a byte
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes((number << 3 | 2,)) + bytes(length) + content


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {getattr(error, 'verify_message', '') or error.reason or error}"
    if isinstance(error, TimeoutError):
        return "nothing answers"
    return (getattr(error, "strerror", None) or str(error)).lower()
