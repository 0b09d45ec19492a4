"""The error of a failed push, for retry policies."""

from __future__ import annotations

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.excerpt import excerpt, secrets_of
from pulsar_retry.push.http.poster import Answer


class PushNacked(PulsarRetryError):  # noqa: N818 - a nack is not a mistake of the endpoint
    """The endpoint has not acknowledged a message.

    Attributes:
        status: The status code of the answer; None if there was no complete answer.
        failure: ``timeout``, ``connection``, ``refused`` (by the guard) or ``tls``; else None.
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
        kind = answer.code if answer.error is None else f"{answer.code} {answer.error}"
        detail = excerpt(answer.body, secrets)
        return cls(f"{endpoint}: {said}", answer.status, answer.failure, kind, detail or None)
