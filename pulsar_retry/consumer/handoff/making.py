"""What a hand-off reads of messages, and the raw messages that it makes of letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import _pulsar

from pulsar_retry.errors import AlreadySettledError, ConfigError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.native.loading import native
from pulsar_retry.runtime.upstream import error_of, whole_of

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    AnyFuture = Future[None] | asyncio.Future[None]

#: Makes a builder of raw messages; the default is pulsar-client's builder.
NewMessage = Callable[[], Any]

_TOO_LARGE = (
    "{error}: its payload has {payload} bytes, and its properties have {properties}, which are not "
    "split into chunks (maxMessageSize, by default 5 MiB)"
)

_UNREADABLE = (
    "the message could not be decrypted, and a letter with its payload could never be read, "
    "because a letter cannot carry the encryption context: pass subscribe a crypto_key_reader that "
    "has the key"
)


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
    message.settled = future


def unsettled(message: Any) -> Any:
    """Return the raw *message*, if it is not settled as far as the message itself shows.

    Raises:
        AlreadySettledError: it was acknowledged or handed on; a letter would be a duplicate.
        ConfigError: the argument is not a message.
    """
    raw = whole_of(message)
    if not is_settled(message):
        return raw
    what = "was acknowledged" if message.settled is True else "was handed on"
    raise AlreadySettledError(f"the message {what} already, so no letter is made from it")


def is_settled(message: Any) -> bool:
    """Tell whether *message* was acknowledged or handed on, as far as the message itself shows."""
    settled = getattr(message, "settled", None)
    if settled is None or settled is True:
        return settled is True
    return not (settled.done() and not settled.cancelled() and settled.exception() is not None)


def check_readable(raw: Any) -> None:
    """Check that a letter of *raw* could be read.

    Raises:
        ConfigError: it could not.
    """
    context = raw.encryption_context()
    if context is not None and context.is_decryption_failed():
        raise ConfigError(_UNREADABLE)


def refusal_of(result: _pulsar.Result, raw: Any, letter: Letter) -> Exception:
    """Return the error for a letter of *raw* that was not published."""
    error = error_of(result)
    if result != _pulsar.Result.MessageTooBig:
        return error
    text = _TOO_LARGE.format(error=error, payload=raw.length(), properties=bytes_of(letter))
    return type(error)(text)


def bytes_of(letter: Letter) -> int:
    """Return how many bytes the properties of *letter* have."""
    return sum(
        len(f"{name}{text}".encode(errors="replace")) for name, text in letter.properties.items()
    )


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
    elif raw.has_null_value():
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
