"""Every error that pulsar-retry raises.

::

    PulsarRetryError
    ├── AdminError                           the REST API was not reached, or refuses
    │   ├── AdminConflictError               … because what is there is in the way
    │   ├── AdminForbiddenError              … because this role may not, or is not known
    │   └── AdminNotFoundError               … because there is no such thing
    ├── ConfigError (also a ValueError)      an argument, before anything is opened
    ├── EventLoopError (also a RuntimeError) a consumer used on another event loop than its own
    ├── ForkedError (also a RuntimeError)    a client used in a forked child process
    ├── SettleError (a PulsarException)      a message could not be handed on; it will come back
    │   ├── LetterPublishError               … because its letter was not published
    │   ├── AcknowledgeError                 … its letter is out, the original not acknowledged
    │   ├── LeaseExpired                     … because it was in hand for too long
    │   └── AlreadySettledError              … because that was done before
    ├── BatchSettleError (an ExceptionGroup) some messages of a list failed, with each error
    ├── ConsumerClosedError (AlreadyClosed)  a call on a consumer that is closed or closing
    ├── HandlerError                         what a handler in another process raised
    │   ├── UnfinishedError                  … or it returned what has not run
    │   └── WorkerCrashedError               … or its process died
    ├── RedriveError                         a redrive could not begin, or had to stop
    ├── SeekError                            a seek was refused, or could not be finished
    │   └── RetentionError                   … because the broker has its messages no more
    ├── SnapshotError                        a snapshot is not there, or cannot be made or restored
    ├── StandaloneError                      the embedded Pulsar did not download, start or stop
    ├── UnreachableError (a ConnectError)    there is no broker where the service URL says
    └── WorkersLostError                     handlers that never return have taken every worker

What pulsar-client raises passes through unchanged wherever a call is only passed on. Where an
error of ours stands for one of its own it is a `pulsar.PulsarException` too, so that existing
handlers catch it, and carries the client's as `__cause__`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from _pulsar import AlreadyClosed, AuthorizationError, ConnectError, PulsarException

__all__ = [
    "AcknowledgeError",
    "AdminConflictError",
    "AdminError",
    "AdminForbiddenError",
    "AdminNotFoundError",
    "AlreadySettledError",
    "BatchSettleError",
    "ConfigError",
    "ConsumerClosedError",
    "EventLoopError",
    "ForkedError",
    "HandlerError",
    "LeaseExpired",
    "LetterPublishError",
    "PulsarRetryError",
    "RedriveError",
    "RetentionError",
    "SeekError",
    "SettleError",
    "SnapshotError",
    "StandaloneError",
    "UnfinishedError",
    "UnreachableError",
    "WorkerCrashedError",
    "WorkersLostError",
]


def shown(value: object, show: Callable[[object], str] = str) -> str:
    """Return *value* as text, whatever its own methods do: trouble is to be told, not added to.

    `repr` of an int of more than 4300 digits raises, too.
    """
    try:
        return show(value)
    except Exception:  # noqa: BLE001 - it is the value's own code that fails
        return f"<{type(value).__qualname__} that cannot be shown>"


class PulsarRetryError(Exception):
    """The base of every error of this package.

    Attributes:
        kind: What tells errors of one class apart, in logs and in dead letters' fingerprints;
            None: the place where they were raised. Letters have no traceback of an error with a
            kind: it was raised in this package.
        detail: What letters tell beside the error's text, and logs do not; None: nothing.
    """

    kind: str | None = None
    detail: str | None = None


class ConfigError(PulsarRetryError, ValueError):
    """An argument is not acceptable. Raised before anything is opened or sent."""

    @classmethod
    def bad(cls, argument: str, value: object, accepted: str) -> ConfigError:
        """Return the error in its one form: the argument, its value and what is accepted."""
        return cls(f"{argument}={shown(value, repr)}: expected {accepted}")


class AdminError(PulsarRetryError):
    """The REST API of a cluster was not reached, or refuses.

    Attributes:
        status: The status of HTTP; None: there was no answer.
        path: What was asked for, after ``/admin/v2/``.
        reason: What the broker says, or why there is no answer.
    """

    def __init__(self, status: int | None, path: str, reason: str) -> None:
        super().__init__(status, path, reason)  # a copy is made from these
        self.status = status
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        status = "" if self.status is None else f" ({self.status})"
        return f"{self.path}: {self.reason}{status}"


class AdminConflictError(AdminError):
    """What is there is in the way: it exists already, or is in use."""


class AdminForbiddenError(AdminError):
    """The role of this token may not do that, or there is no valid token."""


class AdminNotFoundError(AdminError):
    """There is no such tenant, namespace, topic, subscription or message."""


class EventLoopError(PulsarRetryError, RuntimeError):
    """A consumer, producer or reader of `pulsar_retry.asyncio` was used on another event loop."""


class ForkedError(PulsarRetryError, RuntimeError):
    """A client or consumer was used in a child process forked after it was made.

    pulsar-client's threads do not survive a fork: acknowledgements would be lost in silence and
    sends would hang. Make the client in the child instead.
    """


#: The right without which the subscription that keeps dead letters cannot be made.
FIRST_SUBSCRIPTION = "consume, for its first subscription,"

_ADVICE = (
    ". Without a subscription the broker may delete the topic, so one is made first: allow that, "
    "or say initial_subscription_name=None where the topic has a subscription of yours"
)


class SettleError(PulsarRetryError, PulsarException):  # type: ignore[misc]  # it is untyped
    """A message could not be handed on. Nothing is lost: the original will be redelivered."""


class LetterPublishError(SettleError):
    """A retry letter or dead letter was not published; the original was asked to come back.

    Attributes:
        topic: The topic of letters.
    """

    def __init__(self, topic: str, cause: object, *, right: str = "produce") -> None:
        """Make the error; *right* is what a role lacks if *cause* is that it is not authorised."""
        said = shown(cause)
        if isinstance(cause, AuthorizationError):
            said = f"the role of this client may not {right} there ({said})"
        if right == FIRST_SUBSCRIPTION:
            said += _ADVICE
        super().__init__(topic, said)  # a copy is made from these
        self.topic = topic

    def __str__(self) -> str:
        topic, cause = self.args
        return f"could not publish to {topic}: {cause}"


class AcknowledgeError(SettleError):
    """The letter was published but the original was not acknowledged, so both will be delivered."""


class LeaseExpired(SettleError):  # noqa: N818 - nobody has made a mistake
    """A delivery was in hand for longer than its lease: its message has been made to come back."""


class AlreadySettledError(SettleError):
    """A delivery was settled twice. What was said first holds."""


class HandlerError(PulsarRetryError):
    """What a handler raised in another process, where it cannot be pickled: its class and text."""


class WorkerCrashedError(HandlerError):
    """The process of a handler died with a message in hand. This uses up an attempt."""


class UnfinishedError(HandlerError):
    """A handler returned a generator, of which nothing has run. This uses up an attempt."""


class WorkersLostError(PulsarRetryError):
    """A subscription has ended because its workers hang or have died: nothing would be handled."""


class RedriveError(PulsarRetryError):
    """A redrive could not begin, or had to stop. Every dead letter is in its topic or redriven."""


class SeekError(PulsarRetryError):
    """A seek was refused, or could not be finished. Run it again: nothing is lost."""


class RetentionError(SeekError):
    """A seek asks for messages that the broker does not have any more."""


class SnapshotError(PulsarRetryError):
    """A snapshot is not there, cannot be made, or cannot be restored."""


class ConsumerClosedError(PulsarRetryError, AlreadyClosed):  # type: ignore[misc]  # untyped
    """The consumer is closed or closing."""


class StandaloneError(PulsarRetryError):
    """The embedded Pulsar could not be downloaded, started or stopped."""


class UnreachableError(PulsarRetryError, ConnectError):  # type: ignore[misc]  # it is untyped
    """There is no broker where the service URL says, or it refuses the connection.

    The message names the URL and the cause.
    """


class BatchSettleError(PulsarRetryError, ExceptionGroup[Exception]):
    """Some messages of a list could not be handed on; the others were.

    `exceptions` holds one error for each failed message, in the order of the list, and `failed`
    the messages' positions in it.
    """

    failed: tuple[int, ...]

    def __new__(
        cls, message: str, exceptions: Sequence[Exception], failed: Sequence[int] = ()
    ) -> Self:
        """Make the group; *failed* are the positions in the list."""
        self = super().__new__(cls, message, exceptions)
        self.failed = tuple(failed)
        return self

    def __init__(
        self,
        message: str,
        exceptions: Sequence[Exception],
        failed: Sequence[int] = (),  # noqa: ARG002 - __new__ has taken them
    ) -> None:
        # ExceptionGroup's takes no argument by name, and what it takes is what a copy is made from.
        super().__init__(message, exceptions)

    def derive(self, excs: Sequence[Exception]) -> BatchSettleError:  # type: ignore[override]
        """Return a group of the same type for a part of the errors (see `ExceptionGroup`)."""
        positions = {id(error): at for error, at in zip(self.exceptions, self.failed, strict=False)}
        return BatchSettleError(
            self.message, excs, [positions[id(e)] for e in excs if id(e) in positions]
        )
