"""Every error that pulsar-retry raises.

::

    PulsarRetryError
    ├── AdminError                           the REST API was not reached, or refused a request
    │   ├── AdminConflictError               … because something exists already, or is in use
    │   ├── AdminForbiddenError              … because the role lacks a right, or is not known
    │   └── AdminNotFoundError               … because something does not exist
    ├── AuditError                           the audit log cannot be written; nothing was done
    ├── ConfigError (also a ValueError)      an argument is invalid; nothing was opened
    ├── EventLoopError (also a RuntimeError) a consumer was used on a different event loop
    ├── ForkedError (also a RuntimeError)    a client was used in a forked child process
    ├── SettleError (a PulsarException)      a message was not handed on; it will be redelivered
    │   ├── LetterPublishError               … because its letter was not published
    │   ├── AcknowledgeError                 … its letter is published, but it is not acknowledged
    │   ├── LeaseExpired                     … because it was in hand for too long
    │   └── AlreadySettledError              … because it was settled before
    ├── BatchSettleError (an ExceptionGroup) some messages of a list failed; it has their errors
    ├── ConsumerClosedError (AlreadyClosed)  a call on a consumer that is closed or closing
    ├── HandlerError                         a handler failed otherwise than by an Exception
    │   ├── UnfinishedError                  … it returned work that is not done
    │   └── WorkerCrashedError               … its process died
    ├── PayloadError                         a payload does not fit its schema, or is not read here
    ├── RedriveError                         a redrive could not start, or had to stop
    │   └── TopicMissingError                … because there is no such topic (so in other commands)
    ├── SeekError                            a seek was refused, or could not be finished
    │   └── RetentionError                   … because the broker has deleted the messages
    ├── SnapshotError                        a snapshot is missing, or could not be made or restored
    ├── StandaloneError                      the embedded Pulsar did not download, start or stop
    ├── UndecodableError (also a ValueError) a payload cannot be decoded to what a handler takes
    ├── UnreachableError (a ConnectError)    there is no broker at the service URL
    └── WorkersLostError                     workers are lost to handlers that never return

Exceptions of pulsar-client pass through unchanged when this package only forwards a call. If an
error of this package replaces one of pulsar-client, it is a `pulsar.PulsarException` too, so that
existing handlers catch it. It has the original exception as `__cause__`. If a subscription cannot
be opened, a note of the exception (`__notes__`) names the topic, of which there are several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from _pulsar import (
    AlreadyClosed,
    AuthorizationError,
    ConnectError,
    IncompatibleSchema,
    PulsarException,
    TopicTerminated,
)


def shown(value: object, show: Callable[[object], str] = str) -> str:
    """Return *value* as text, even if its own `str` or `repr` raises.

    `repr` raises for an int of more than 4300 digits, too.
    """
    try:
        return show(value)
    except Exception:  # noqa: BLE001 - it is the value's own code that fails
        return f"<{type(value).__qualname__} that cannot be shown>"


def noted(error: BaseException) -> str:
    """Return the text of *error*, with its notes of one line."""
    text = shown(error)
    with contextlib.suppress(Exception):  # there are none, or it is the error's own code that fails
        return "; ".join([text, *(each for each in error.__notes__ if "\n" not in each)])
    return text


def inborn(name: str) -> Callable[[BaseException], Any]:
    """Return the function that gets an attribute which each error has.

    The class of an error may have its own attribute of that name, which cannot be read.
    """
    return vars(BaseException)[name].__get__  # type: ignore[no-any-return]


attributes_of, cause_of, trace_of = map(inborn, ("__dict__", "__cause__", "__traceback__"))


_TERMINATED = (
    "It is terminated, and nothing can be published to it: when what is in it is handled, delete "
    "it, and it is created again"
)
_INCOMPATIBLE = (
    "It refuses the schema. If it has messages without a schema, or the namespace allows no new "
    "schema, upload it first (pulsar-admin schemas upload); otherwise it does not fit the others"
)


@contextlib.contextmanager
def about(topic: object) -> Iterator[None]:
    """Note *topic* in errors, which pulsar-client does not name, and what to do if that helps."""
    try:
        yield
    except Exception as error:
        error.add_note(f"The topic is {topic}")
        if isinstance(error, TopicTerminated):
            error.add_note(_TERMINATED)
        if isinstance(error, IncompatibleSchema):
            error.add_note(_INCOMPATIBLE)
        raise


class PulsarRetryError(Exception):
    """The base of every error of this package.

    Attributes:
        kind: A name that distinguishes errors of one class, in logs and in the fingerprints of dead
            letters. None: the place where the error was raised distinguishes them. A letter has no
            traceback of an error with a kind, because this package raised the error.
        detail: Text for letters only, in addition to the error's text. It is not logged. None if
            there is none.
    """

    kind: str | None = None
    detail: str | None = None


class ConfigError(PulsarRetryError, ValueError):
    """An argument is invalid. The error is raised before anything is opened or sent."""

    @classmethod
    def bad(cls, argument: str, value: object, accepted: str) -> ConfigError:
        """Return the error in its standard form: argument, value, and what is accepted."""
        return cls(f"{argument}={shown(value, repr)}: expected {accepted}")


class AdminError(PulsarRetryError):
    """The REST API of a cluster was not reached, or refused a request.

    Attributes:
        status: The HTTP status; None if there was no answer.
        path: The path of the request, after ``/admin/v2/``.
        reason: The broker's message, or why there was no answer.
    """

    def __init__(self, status: int | None, path: str, reason: str) -> None:
        super().__init__(status, path, reason)  # unpickling calls the class with these
        self.status = status
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        status = "" if self.status is None else f" ({self.status})"
        return f"{self.path}: {self.reason}{status}"


class AdminConflictError(AdminError):
    """The request conflicts with the present state: something exists already, or is in use."""


class AdminForbiddenError(AdminError):
    """The role of the token lacks the right, or there is no valid token."""


class AdminNotFoundError(AdminError):
    """The tenant, namespace, topic, subscription or message does not exist."""


class AuditError(PulsarRetryError):
    """The audit log cannot be written. The command that it is about has not begun."""


class EventLoopError(PulsarRetryError, RuntimeError):
    """A consumer, producer or reader of `pulsar_retry.asyncio` was used on a second event loop."""


class ForkedError(PulsarRetryError, RuntimeError):
    """A client or consumer was used in a child process that was forked after it was made.

    pulsar-client's threads do not survive a fork: acknowledgements would be lost without an error,
    and sends would hang. Make the client in the child process instead.
    """


#: The right that is needed to create the subscription that keeps dead letters.
INITIAL_SUBSCRIPTION = "consume (to create the initial subscription)"

_ADVICE = (
    ". Without a subscription the broker may delete the topic, so one is created first: grant that "
    "right, or set initial_subscription_name=None if you have created a subscription"
)


class SettleError(PulsarRetryError, PulsarException):
    """A message could not be handed on. Nothing is lost: the original will be redelivered."""


class LetterPublishError(SettleError):
    """A retry letter or dead letter was not published; the original will be redelivered.

    Attributes:
        topic: The topic of the letter.
    """

    def __init__(self, topic: str, cause: object, *, right: str = "produce") -> None:
        """Make the error. *right* is the missing right if *cause* is an authorization error."""
        reason = shown(cause)
        if isinstance(cause, AuthorizationError):
            reason = f"the role of this client may not {right} there ({reason})"
        if isinstance(cause, TopicTerminated):
            reason += f". {_TERMINATED}"
        if right == INITIAL_SUBSCRIPTION:
            reason += _ADVICE
        super().__init__(topic, reason)  # unpickling calls the class with these
        self.topic = topic

    def __str__(self) -> str:
        topic, cause = self.args
        return f"could not publish to {topic}: {cause}"


class AcknowledgeError(SettleError):
    """The letter was published, but the original was not acknowledged: both will be delivered."""


class LeaseExpired(SettleError):  # it is not a mistake of the caller
    """A delivery was in hand for longer than its lease; the message will be redelivered."""


class AlreadySettledError(SettleError):
    """A message was settled twice. The first call counts."""


class HandlerError(PulsarRetryError):
    """A handler raised what would end a thread or a task, such as `asyncio.CancelledError`.

    The exception is its cause. `SystemExit` and `KeyboardInterrupt` end the subscription instead.
    """


class WorkerCrashedError(HandlerError):
    """The process of a handler died while it had a message. This uses up an attempt."""


class UnfinishedError(HandlerError):
    """A handler returned a coroutine, a future or a generator, whose work is not done.

    This uses up an attempt.
    """


class WorkersLostError(PulsarRetryError):
    """A subscription has ended because too many workers hang, or because one has died."""


class PayloadError(PulsarRetryError):
    """A payload does not fit its schema, or the schema is not read here, or a patch is refused."""


class UndecodableError(PulsarRetryError, ValueError):
    """A payload cannot be decoded to the type that a handler takes, or by the schema.

    No retry can help, so a subscriber dead-letters the message at its first attempt, whatever the
    retry policy says about errors of this class.

    Attributes:
        reason: The reason of the dead letter.
    """

    reason = "undecodable"


class RedriveError(PulsarRetryError):
    """A redrive could not start, or had to stop. Each dead letter is in its topic or redriven."""


class SeekError(PulsarRetryError):
    """A seek was refused, or could not be finished. Nothing is lost: run it again."""


class RetentionError(SeekError):
    """A seek needs messages that the broker has deleted."""


class SnapshotError(PulsarRetryError):
    """A snapshot does not exist, or could not be made or restored."""


class TopicMissingError(RedriveError, SeekError, SnapshotError):
    """A topic that a command is about does not exist."""


class ConsumerClosedError(PulsarRetryError, AlreadyClosed):
    """The consumer is closed or closing."""


class StandaloneError(PulsarRetryError):
    """The embedded Pulsar could not be downloaded, started or stopped."""


class UnreachableError(PulsarRetryError, ConnectError):
    """There is no broker at the service URL, or it refuses the connection.

    The message contains the URL and the cause.
    """


class BatchSettleError(PulsarRetryError, ExceptionGroup[Exception]):
    """Some messages of a list could not be handed on; the others were.

    `exceptions` has one error for each failed message, in the order of the list. `failed` has the
    positions of these messages in the list.
    """

    failed: tuple[int, ...]

    def __new__(
        cls, message: str, exceptions: Sequence[Exception], failed: Sequence[int] = (), /
    ) -> Self:
        """Make the group. *failed* are the positions in the list."""
        self = super().__new__(cls, message, exceptions)
        self.failed = tuple(failed)
        return self

    def derive(self, excs: Sequence[Exception]) -> BatchSettleError:  # type: ignore[override]
        """Return a group of the same type with some of the errors (see `ExceptionGroup`)."""
        positions = {id(error): at for error, at in zip(self.exceptions, self.failed, strict=False)}
        return BatchSettleError(
            self.message, excs, [positions[id(e)] for e in excs if id(e) in positions]
        )
