"""The error of a failed push, and the excerpt of an answer that letters contain. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.push.endpoint import PushEndpoint
from pulsar_retry.push.http import Answer

#: The length of an excerpt, in characters.
MOST = 500
#: The length, in characters, from which a path or query, or one part of it, may be a secret.
_WHOLE, _PART = 4, 8


class PushNacked(PulsarRetryError):  # a nack is not a mistake of the endpoint
    """The endpoint has not acknowledged a message.

    Attributes:
        status: The status code of the answer; None if there was no complete answer.
        failure: ``timeout``, ``connection``, ``refused`` (the address) or ``tls``; else None.
        kind: The status, or the failure with the class of the error. Failures are logged by kind,
            and dead letters are grouped by it.
        detail: The beginning of the answer's body, at most 500 characters, without the endpoint's
            path and the request's token. Letters contain it; logs do not.
    """

    def __init__(
        self,
        text: str,
        status: int | None = None,
        failure: str | None = None,
        kind: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(text, status, failure, kind, detail)  # a copy is made from these arguments
        self.status = status
        self.failure = failure
        self.kind = kind or failure or str(status)
        self.detail = detail

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(cls, endpoint: PushEndpoint, answer: Answer, token: str = "") -> PushNacked:
        """Return the error for *answer*; it shows the origin of the endpoint, not its path.

        Args:
            endpoint: Where the request was sent to.
            answer: The result of the request.
            token: The token of the request, which must not be shown either.
        """
        secrets = [*secrets_of(endpoint.target), token]
        # The detail repeats an answer that is not HTTP, which may contain the request itself.
        failed = excerpt(answer.detail.encode("utf-8", "replace"), secrets)
        said = f"answered {answer.status}" if answer.failure is None else failed
        if answer.location:  # its query may be a secret of the endpoint's own
            location = answer.location.partition("?")[0].encode("utf-8", "replace")
            said += f" (Location {excerpt(location, secrets)})"
        kind = answer.code if answer.error is None else f"{answer.code} {answer.error}"
        detail = excerpt(answer.body, secrets)
        return cls(f"{endpoint}: {said}", answer.status, answer.failure, kind, detail or None)


def excerpt(body: bytes, hidden: Iterable[str] = ()) -> str:
    """Return the beginning of *body* on one line, without the texts of *hidden*.

    Error pages repeat parts of the request: the path, and in debug mode the headers.
    """
    text = body.decode("utf-8", "replace")
    forms = {form for each in hidden for form in (each, unquote(each), html.escape(each)) if each}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "…")
    text = "".join(each if each.isprintable() else " " for each in text)
    text = " ".join(text.split())
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def secrets_of(target: bytes) -> list[str]:
    """Return the parts of an endpoint's path and query that may be secrets."""
    whole = target.decode()
    parts = urlsplit(whole)
    values = [value for _, value in parse_qsl(parts.query)]
    wholes = [each for each in (whole, parts.path, parts.query) if len(each) >= _WHOLE]
    return wholes + [each for each in (*parts.path.split("/"), *values) if len(each) >= _PART]
