"""A webhook: where messages are posted to, in which form, and with which signature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Literal

import attrs

from pulsar_retry._version import __version__
from pulsar_retry.console.notify.outbox import NoticeMessage
from pulsar_retry.console.notify.wording import Wording
from pulsar_retry.errors import ConfigError
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.excerpt import excerpt, secrets_of
from pulsar_retry.push.http.guard import Guard
from pulsar_retry.push.http.poster import Poster
from pulsar_retry.push.pusher import Signer

Form = Literal["slack", "json"]
FORMS: tuple[Form, ...] = ("slack", "json")

#: Seconds for a request, with its connection.
_DEADLINE = 10.0
_SLACK_HOSTS = frozenset({"hooks.slack.com", "hooks.slack-gov.com"})
_USER_AGENT = (b"User-Agent", f"pulsar-retry/{__version__}".encode())
#: The longest reason, in characters.
_SAID = 300


@attrs.frozen
class PostOutcome:
    """The result of a request.

    Attributes:
        code: The status, or ``timeout``, ``connection``, ``refused`` or ``tls``.
        why: Why the message was not accepted, in words and without secrets; empty if it was.
    """

    code: str
    why: str = ""


@attrs.frozen
class Webhook:
    """A receiver of notifications. Its `str` and `repr` do not show the path, which is a secret.

    Attributes:
        endpoint: Where it is.
        form: What the body is.
        signers: Sign each request.
    """

    endpoint: PushEndpoint
    form: Form
    signers: Sequence[Signer] = attrs.field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        url: str,
        *,
        form: Form | None = None,
        signers: Sequence[Signer] = (),
        allow_http: bool = False,
    ) -> Webhook:
        """Read a URL.

        Args:
            url: An ``https`` URL; ``http`` is accepted to loopback, or with *allow_http*.
            form: What the body is; None for Slack's form at Slack's hosts, and ours elsewhere.
            signers: Sign each request.
            allow_http: Whether ``http`` is accepted for every host.

        Raises:
            ConfigError: it is not such a URL. The message does not show its path.
        """
        try:
            endpoint = PushEndpoint.of(url, allow_http=allow_http)
        except ConfigError as error:
            text = str(error).removeprefix("endpoint")
            text = text.replace("allow_http=True", "--notify-allow-http")
            raise ConfigError(f"--notify{text}") from None
        usual: Form = "slack" if endpoint.host in _SLACK_HOSTS else "json"
        return cls(endpoint, form or usual, tuple(signers))

    @property
    def key(self) -> str:
        """A name that the store has in place of the URL."""
        return hashlib.sha256(self.endpoint.url.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        # Several webhooks may have one host.
        return f"{self.endpoint} ({self.key[:6]})"

    def body(self, message: NoticeMessage, wording: Wording) -> bytes:
        """Return the body of a message."""
        make = wording.as_slack if self.form == "slack" else wording.as_json
        return json.dumps(make(message), ensure_ascii=False).encode("utf-8", "replace")

    async def post(self, message_id: str, body: bytes) -> PostOutcome:
        """Post a body, with signatures. Redirects are not followed."""
        headers = [(b"Content-Type", b"application/json; charset=utf-8"), _USER_AGENT]
        signed = [
            each
            for signer in self.signers
            for each in signer.headers(self.endpoint.url, message_id, body)
        ]
        poster = Poster(self.endpoint, deadline=_DEADLINE, guard=Guard())
        try:
            answer = await poster.post(body, [*headers, *signed])
        finally:
            await poster.aclose()
        if answer.is_ack:
            return PostOutcome(answer.code)
        hidden = [*secrets_of(self.endpoint.target), *(value.decode() for _, value in signed)]
        said = excerpt(answer.body or answer.detail.encode(), hidden)
        return PostOutcome(answer.code, f"{answer.code} {said}".strip()[:_SAID])
