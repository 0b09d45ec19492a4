"""What a push has failed with, as a retry policy sees it."""

from __future__ import annotations

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.push.poster import Answer


class PushNacked(PulsarRetryError):  # noqa: N818 - the endpoint has made no mistake
    """The endpoint has not acknowledged a message.

    Attributes:
        status: Its status code; None where there was no whole answer.
        failure: ``timeout``, ``connection``, ``refused`` (by the guard) or ``tls``; else None.
    """

    def __init__(self, text: str, status: int | None = None, failure: str | None = None) -> None:
        super().__init__(text, status, failure)  # a copy is made from these
        self.status = status
        self.failure = failure

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(cls, endpoint: object, answer: Answer) -> PushNacked:
        """Return the error for *answer*; it shows the endpoint's origin, not its path."""
        said = f"answered {answer.status}" if answer.failure is None else answer.detail
        return cls(f"{endpoint}: {said}", answer.status, answer.failure)
