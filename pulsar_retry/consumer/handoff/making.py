"""Makes letters from received messages, and raw messages from letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from pulsar_retry.errors import AlreadySettledError, ConfigError
from pulsar_retry.letters.letter import (
    DeadRequest,
    DelayRequest,
    FailureDetails,
    Letter,
    Request,
    dead_lettered,
    reconsumed,
)
from pulsar_retry.letters.plan import Plan
from pulsar_retry.native.loading import native
from pulsar_retry.observe.tracing import with_span
from pulsar_retry.policy.actions import UNREADABLE_PROPERTIES
from pulsar_retry.policy.durations import Duration
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.raw import publish_time, whole_of
from pulsar_retry.runtime.upstream import has_null_value
from pulsar_retry.wire.properties import Origin, message_id_text, reconsume_times
from pulsar_retry.wire.sizes import MOST_PROPERTIES, excess

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    AnyFuture = Future[None] | asyncio.Future[None]

_TOO_LARGE = (
    "its properties take {size} bytes, which is more than a Pulsar message can hold in addition to "
    "its payload (maxMessageSize: 5 MiB)"
)

_UNREADABLE = (
    "the message could not be decrypted, and a letter with its payload could never be read, "
    "because a letter cannot carry the encryption context: pass subscribe a crypto_key_reader that "
    "has the key"
)


class LetterMaker:
    """Makes the letters of one subscription. Thread-safe. It sends nothing.

    Attributes:
        plan: The plan of the subscription.
    """

    def __init__(self, plan: Plan, clock: Clock = SYSTEM) -> None:
        self.plan = plan
        self._clock = clock
        # Most callers use one of a few delays, so each is checked once.
        self._requests = lru_cache(64, typed=True)(partial(DelayRequest.of, plan))

    def delay_request(self, delay: Duration | None, level: int | None) -> DelayRequest:
        """Check the requested delay or level.

        Raises:
            ConfigError: see `DelayRequest.of`.
        """
        try:
            return self._requests(delay, level)
        except TypeError:  # an unhashable value is not a valid delay; this raises the right error
            return DelayRequest.of(self.plan, delay, level)

    def retry(
        self,
        message: Any,
        delay: Duration | None,
        level: int | None,
        properties: Mapping[str, str] | None,
    ) -> tuple[Any, Letter]:
        """Return the raw *message*, and the letter that `Consumer.reconsume_later` publishes.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        request = self.delay_request(delay, level)
        raw = _unsettled(message)
        try:
            carried = raw.properties()
        except UnicodeDecodeError:
            return self.dead(message, UNREADABLE_PROPERTIES, None, properties)
        letter = reconsumed(self.plan, request, carried, self.origin(raw), properties)
        return raw, with_span(letter, message, self.plan.subscription)

    def native_retry(
        self, message: Any, delay: Duration | None, level: int | None
    ) -> tuple[Any, DelayRequest] | None:
        """Return the raw *message* and the request, if C++ may make the letter; see `retry`.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        request = self.delay_request(delay, level)
        raw = _unsettled(message)
        return (raw, request) if may_be_native(message, raw) else None

    def remake(self, raw: Any, request: Request) -> Letter:
        """Return the letter for a raw message, as was requested."""
        carried, origin = raw.properties(), self.origin(raw)
        if isinstance(request, DelayRequest):
            return reconsumed(self.plan, request, carried, origin, None)
        return request.letter(self.plan, carried, origin)

    def native_dead(
        self,
        message: Any,
        reason: str,
        error: BaseException | None,
        count: Callable[[Any], int | None],
    ) -> tuple[Any, DeadRequest] | None:
        """Return the raw *message* and the request, if C++ may make the dead letter; see `dead`.

        *count* returns how often a raw message was reconsumed, or None if Python makes its letter.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        raw = _unsettled(message)
        if not may_be_native(message, raw) or (reconsumed := count(raw)) is None:
            return None
        details = FailureDetails(
            checked_error(error),
            1 + reconsumed + raw.redelivery_count(),
            self._clock.now(),
            publish_time(raw),
        )
        return raw, DeadRequest.of(self.plan, reason, details)

    def dead(
        self,
        message: Any,
        reason: str,
        error: BaseException | None,
        properties: Mapping[str, str] | None,
    ) -> tuple[Any, Letter]:
        """Return the raw *message*, and the letter that `Consumer.dead_letter` publishes.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        raw = _unsettled(message)
        carried, origin = text_properties(raw), self.origin(raw)
        own = self.plan.recipient.own(carried, origin.topic)
        attempt = 1 + reconsume_times(own) + raw.redelivery_count()
        details = FailureDetails(
            checked_error(error), attempt, self._clock.now(), publish_time(raw)
        )
        letter = dead_lettered(
            self.plan, carried, origin, custom=properties, reason=reason, details=details
        )
        return raw, with_span(letter, message, self.plan.subscription)

    def redelivered(self, raw: Any) -> Letter:
        """Return the dead letter of *raw*, whose redeliveries are used up."""
        return dead_lettered(self.plan, text_properties(raw), self.origin(raw))

    def origin(self, raw: Any) -> Origin:
        """Return the topic, the id and the subscription that *raw* was delivered with."""
        return Origin(raw.topic_name(), message_id_text(raw.message_id()), self.plan.subscription)


def text_properties(raw: Any) -> dict[str, str]:
    r"""Return the properties of a raw message; bytes that are not UTF-8 are escaped, as in \xff.

    pulsar-client gives no property if one of them is not UTF-8. Without the extension module there
    are none then.
    """
    try:
        properties: dict[str, str] = raw.properties()
    except UnicodeDecodeError:
        module = native().module
        properties = {} if module is None else module.properties(raw)
    return properties


def may_be_native(message: Any, raw: Any) -> bool:
    """Tell whether C++ may make a letter of *message*: it has no span, and was not encrypted."""
    return not getattr(message, "_pulsar_retry_span", None) and raw.encryption_context() is None


def checked_error(error: Any) -> BaseException | None:
    """Return *error* if it is an exception or None.

    Raises:
        ConfigError: the value is neither.
    """
    if error is not None and not isinstance(error, BaseException):
        accepted = "an exception or None; put text into reason or properties"
        raise ConfigError.bad("error", error, accepted)
    return error


def handed_on(message: Any, future: AnyFuture) -> None:
    """Record in *message* that it is handed on; *future* is the result of the hand-off."""
    message._settled = future  # noqa: SLF001


def _unsettled(message: Any) -> Any:
    """Return the raw *message*, if it is not settled as far as the message itself shows.

    Raises:
        AlreadySettledError: it was acknowledged or handed on; a letter would be a duplicate.
        ConfigError: the argument is not a message.
    """
    raw = whole_of(message)
    settled = getattr(message, "_settled", None)
    if settled is True:
        what = "was acknowledged"
    elif settled is None or _has_failed(settled):
        return raw
    else:
        what = "was handed on"
    raise AlreadySettledError(f"the message {what} already, so no letter is made from it")


def _has_failed(future: AnyFuture) -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


def check_letter(raw: Any, letter: Letter, most: int) -> None:
    """Check that a letter can be published; its properties have at most *most* bytes.

    Raises:
        ConfigError: it could not be published, or could never be read.
    """
    if most > MOST_PROPERTIES and (size := excess(letter.properties)):
        raise ConfigError(_TOO_LARGE.format(size=size))
    context = raw.encryption_context()
    if context is not None and context.is_decryption_failed():
        raise ConfigError(_UNREADABLE)


def build_letter(
    raw: Any,
    letter: Letter,
    builder: Any,
    clock: Callable[[], float],
) -> Any:
    """Return *letter* as a raw message, with *raw*'s payload, key, ordering key and event time.

    Args:
        raw: The raw message that the letter is made from.
        letter: The letter.
        builder: The builder of the raw message.
        clock: The clock.
    """
    if letter.payload is not None:
        builder.content(letter.payload)
    elif has_null_value(raw):
        builder.set_null_value()
    else:
        builder.content(raw.data())
    builder.properties(letter.properties)
    try:
        key, ordering_key = raw.partition_key(), raw.ordering_key()
    except UnicodeDecodeError:
        key, ordering_key = _text_or_bytes(raw.partition_key), _text_or_bytes(raw.ordering_key)
    if key:
        builder.partition_key(key)
    if ordering_key:
        builder.ordering_key(ordering_key)
    if moment := raw.event_timestamp():
        builder.event_timestamp(moment)
    if moment := deliver_at(letter, clock):
        builder.deliver_at(moment)
    return builder.build()


def deliver_at(letter: Letter, clock: Callable[[], float]) -> int:
    """Return when *letter* is due, in milliseconds since 1970; 0: at once."""
    return round((clock() + letter.delay) * 1000) if letter.delay else 0


def _text_or_bytes(read: Callable[[], str]) -> str | bytes:
    """Return what *read* returns; a Java client can have stored bytes that are not text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        return error.object
