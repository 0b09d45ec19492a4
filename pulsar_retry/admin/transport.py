"""HTTP to the REST API: tokens, redirects to the owner of a topic, retries, and errors."""

from __future__ import annotations

import json
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any, Protocol

import urllib3
from urllib3.exceptions import ConnectTimeoutError, LocationValueError, ReadTimeoutError

from pulsar_retry.errors import (
    AdminConflictError,
    AdminError,
    AdminForbiddenError,
    AdminNotFoundError,
    ConfigError,
    shown,
)
from pulsar_retry.wire.names import TopicName


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


class NoAnswerError(AdminError):
    """A request was sent, and not answered in time."""


class NotShownError(AdminError):
    """The broker cannot show an entry: it is a chunk that is compressed, which it cannot read."""


class _Retry(urllib3.Retry):
    """When a request is sent again, or to another broker: the one that owns its topic.

    It is not sent again if there is no connection, or no answer in time: an address where nothing
    listens is reported at once, and time-outs take long already. The owner gets the token too, as
    from the Java client, but never without TLS if the first request used TLS.
    """

    def increment(self, method: Any = None, url: Any = None, *args: Any, **kwargs: Any) -> Any:
        error, response = kwargs.get("error"), kwargs.get("response")
        # The first is also that of a refused connection and of an unknown name.
        if isinstance(error, ConnectTimeoutError | ReadTimeoutError):
            raise error
        target = response and response.get_redirect_location()
        if target and _uses_tls(url) and not _uses_tls(urllib.parse.urljoin(url, target)):
            raise LocationValueError("refused a redirect from https to http")
        return super().increment(method, url, *args, **kwargs)


def _uses_tls(url: str) -> bool:
    return urllib.parse.urlsplit(url).scheme == "https"


#: Seconds to wait for a connection and for an answer. The broker may first have to load partitions.
_TIMEOUT = urllib3.Timeout(connect=4, read=30)
#: Requests that change nothing are sent again if a broker hangs up, or answers that it restarts or
#: transfers a topic.
_RETRIES = _Retry(
    total=None,
    connect=4,
    read=4,
    status=4,
    other=4,  # such as errors of TLS; None would be no limit
    redirect=5,
    remove_headers_on_redirect=(),
    backoff_factor=0.2,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods={"GET", "HEAD"},
    raise_on_status=False,
)
#: The maximum number of connections that are kept open.
_MOST_IDLE = 16
_OK, _BAD = 200, 400
_DOTS = frozenset({".", ".."})
#: The maximum number of characters that are shown of a broker's reason.
_MAX_REASON = 500

#: How a broker begins its reason, with the status of a conflict, while no broker owns a topic.
_NO_OWNER = "Failed to find ownership"
#: What is in a broker's reason if it has tried to decompress a chunk, which it cannot by itself.
_CANNOT_DECOMPRESS = "org.apache.pulsar.common.compression"

_ERRORS: Mapping[int, type[AdminError]] = {
    401: AdminForbiddenError,
    403: AdminForbiddenError,
    404: AdminNotFoundError,
    409: AdminConflictError,
    412: AdminConflictError,
}


class Transport:
    """Sends requests to /admin/v2/…. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Store the location of the REST API; nothing is opened yet."""
        self._endpoint = endpoint
        self._root = endpoint.admin_url.rstrip("/")
        options: dict[str, Any] = {"maxsize": _MOST_IDLE, "block": False}
        if _uses_tls(self._root):
            options["ssl_context"] = tls_context(endpoint)
        self._pool = urllib3.PoolManager(**options)

    def json(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Send *body* as JSON and return the JSON of the answer; None if it is empty.

        Args:
            method: GET, PUT, POST or DELETE.
            path: The quoted path after ``/admin/v2/``.
            body: The body; None: no body.
            query: The parameters of the query. A parameter that is None is left out.

        Raises:
            AdminError: the API was not reached, or refused the request.
        """
        data = self.send(method, path, body, **query).data
        try:
            return json.loads(data) if data.strip() else None
        except ValueError:
            reason = f"{self._root} answered with something that is not JSON: is this Pulsar?"
            raise AdminError(_OK, path, reason) from None

    def names(self, path: str, **query: object) -> list[str]:
        """Return the list of names that a GET request gets; see `json`.

        Raises:
            AdminError: the answer is no list. Another server's could pass for an empty one.
        """
        found = self.json("GET", path, **query)
        if not isinstance(found, list):
            reason = f"{self._root} answered with something that is not a list: is this Pulsar?"
            raise AdminError(_OK, path, reason)
        return found

    def send(
        self, method: str, path: str, body: object = None, **query: object
    ) -> urllib3.BaseHTTPResponse:
        """Send a request as `json` does, but return the whole answer."""
        url = f"{self._root}/admin/v2/{path}"
        if given := {name: _text(each) for name, each in query.items() if each is not None}:
            url += "?" + urllib.parse.urlencode(given)
        headers = {"Accept": "*/*"}
        if (token := self._endpoint.read_token()) is not None:
            if not (token.isascii() and token.isprintable()):
                text = "the token contains characters that are not allowed in a token"
                raise AdminError(None, path, text)
            headers["Authorization"] = f"Bearer {token}"
        try:
            answer = self._pool.request(
                method,
                url,
                json=body,
                headers=headers,
                timeout=_TIMEOUT,
                retries=_RETRIES,
            )
        except urllib3.exceptions.HTTPError as error:
            kind = NoAnswerError if isinstance(error, ReadTimeoutError) else AdminError
            raise kind(None, path, f"{self._root} was not reached: {_cause(error)}") from None
        if answer.status < _BAD:
            return answer
        reason = _reason(answer)
        kind = _ERRORS.get(answer.status, AdminError)
        if reason is None:  # the server may not be Pulsar, and its 404 says nothing about a topic
            reason = f"{self._root} answers: {answer.reason or 'an error'}"
            kind = kind if kind is AdminForbiddenError else AdminError
        if reason.startswith(_NO_OWNER):
            kind = AdminError
        if _CANNOT_DECOMPRESS in reason:
            kind = NotShownError
        raise kind(answer.status, path, reason[:_MAX_REASON])

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()


def topic_path(topic: str, *parts: str) -> str:
    """Return the quoted path of a topic, ``persistent/tenant/namespace/topic/…``."""
    name = TopicName.parse(topic)
    return quoted(name.domain, name.tenant, name.namespace, name.local, *parts)


def quoted(*parts: str) -> str:
    """Return a path of *parts*, each quoted.

    Raises:
        ConfigError: a part is empty, or has ``.`` or ``..`` between slashes. Clients, proxies and
            servers resolve these, so the request would reach a different resource.
    """
    for part in parts:
        if not part or not _DOTS.isdisjoint(part.split("/")):
            raise ConfigError.bad(
                "name", part, "a name that is not empty and has no part . or .. between slashes"
            )
    return "/".join(urllib.parse.quote(part, safe="") for part in parts)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    """Return the SSL context for connections to the API.

    Raises:
        ConfigError: the file of trusted certificates cannot be read, or contains none.
    """
    file = endpoint.tls_trust_certs_file
    try:
        context = ssl.create_default_context(cafile=file)
    except OSError as error:  # also an ssl.SSLError; the error does not name the file
        raise ConfigError.bad("tls_trust_certs_file", file, f"PEM certificates ({error})") from None
    if endpoint.tls_allow_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _reason(response: Any) -> str | None:
    """Return the broker's reason, from ``{"reason": …}``; None if the answer has another form."""
    try:
        facts = json.loads(response.data)
        return str(facts["reason"] if isinstance(facts, dict) else facts)
    except (ValueError, KeyError):
        return None


def _cause(error: urllib3.exceptions.HTTPError) -> str:
    reason = getattr(error, "reason", None) or error
    system = reason.__cause__
    if isinstance(system, OSError) and system.strerror:  # such as "Connection refused"
        return system.strerror.lower()
    return f"{type(reason).__name__}: {shown(reason)}"[:_MAX_REASON]
