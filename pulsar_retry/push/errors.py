"""What a push has failed with, as a retry policy sees it."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.excerpt import excerpt, secrets_of
from pulsar_retry.push.http.poster import Answer


class PushNacked(PulsarRetryError):  # noqa: N818 - the endpoint has made no mistake
    """The endpoint has not acknowledged a message.

    Attributes:
        status: Its status code; None where there was no whole answer.
        failure: ``timeout``, ``connection``, ``refused`` (by the guard) or ``tls``; else None.
        kind: The status, or the failure and the class of the error. Each kind is logged on its own,
            and dead letters are grouped by it.
        detail: The beginning of the answer's body, 500 characters at most, without the endpoint's
            path and the request's signatures. Letters tell it, and logs do not.
    """

    def __init__(
        self,
        text: str,
        status: int | None = None,
        failure: str | None = None,
        kind: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(text, status, failure, kind, detail)  # a copy is made from these
        self.status = status
        self.failure = failure
        self.kind = kind or failure or str(status)
        self.detail = detail

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(cls, endpoint: PushEndpoint, answer: Answer, hidden: Iterable[str] = ()) -> PushNacked:
        """Return the error for *answer*; it shows the endpoint's origin, not its path.

        Args:
            endpoint: Where the request was sent to.
            answer: What became of it.
            hidden: What else of the request is not to be shown.
        """
        secrets = [*secrets_of(endpoint.target), *hidden]
        # What is no HTTP is repeated in the detail, and may be the request itself.
        failed = excerpt(answer.detail.encode("utf-8", "replace"), secrets)
        said = f"answered {answer.status}" if answer.failure is None else failed
        kind = answer.code if answer.error is None else f"{answer.code} {answer.error}"
        detail = excerpt(answer.body, secrets)
        return cls(f"{endpoint}: {said}", answer.status, answer.failure, kind, detail or None)
