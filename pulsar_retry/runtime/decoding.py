"""Errors of a schema that cannot decode a payload, told from all other errors."""

from __future__ import annotations

import contextlib

import pulsar

from pulsar_retry.errors import UndecodableError, shown

#: These are not the payload's fault. A schema asks the broker for the schema of the writer, and the
#: broker may not answer.
_NOT_THE_PAYLOAD = (pulsar.PulsarException, OSError, MemoryError)

_MARK = "_pulsar_retry_undecodable"


def mark(error: Exception) -> None:
    """Mark an error of a schema if it is the payload's fault. It is still the schema's error."""
    if not _is_not_the_payload(error):
        with contextlib.suppress(AttributeError, TypeError):  # a class may refuse attributes
            setattr(error, _MARK, True)


def _is_not_the_payload(error: BaseException) -> bool:
    """Tell whether *error*, or one that was raised before it, is not the payload's fault.

    If the broker does not answer, pulsar-client decodes without the schema of the writer, and an
    error of that says nothing about the payload.
    """
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    return any(isinstance(each, _NOT_THE_PAYLOAD) for each in chain)


def undecodable(error: BaseException) -> UndecodableError | None:
    """Return the error if it says that a payload cannot be decoded; otherwise None."""
    if isinstance(error, UndecodableError):
        return error
    if not getattr(error, _MARK, False):
        return None
    text = f"the payload cannot be decoded: {type(error).__qualname__}: {shown(error)}"
    found = UndecodableError(text)
    found.__cause__ = error  # it has the traceback
    return found
