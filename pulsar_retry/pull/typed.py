"""Handlers that take their own type: their annotation decides how a payload is decoded.

A handler is looked at once, before anything is opened. A handler that takes the message itself is
called as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import pulsar

from pulsar_retry._extras import need
from pulsar_retry.errors import ConfigError, UndecodableError, shown
from pulsar_retry.runtime.upstream import raw_of

_Decode = Callable[[Any], Any]

_ACCEPTED = (
    "a function of one message, or of one payload and, if it wants, its message, def or async def"
)
_PAYLOADS = "a pulsar.Message, a dataclass, a TypedDict, a pydantic model or what the schema gives"

#: Annotations that do not ask for a payload.
_ANYTHING = (inspect.Parameter.empty, Any, object)

#: What the schemas give that decode nothing: then the payload is JSON.
_UNDECODED = (bytes, str)

#: How many problems of a payload an error names.
_MOST_PROBLEMS = 3


def of_message(handler: Callable[..., Any], schema: Any) -> Callable[[Any], Any]:
    """Return *handler* as a function of a message, which decodes the payload if the handler asks.

    Args:
        handler: The handler.
        schema: The schema of the subscription.

    Raises:
        ConfigError: the handler cannot be called with a message, nor with a payload and perhaps its
            message; or its annotation cannot be resolved, or names no type that can be decoded to.
        ModuleNotFoundError: the extra ``typed`` is not installed, and this handler needs it.
    """
    try:
        signature = _signature(handler)
    except (TypeError, ValueError):  # some C functions have no signature
        return handler
    parameters = list(signature.parameters.values())
    decode = None
    if parameters and parameters[0].kind is not inspect.Parameter.KEYWORD_ONLY:
        annotation = _resolved(handler, parameters[0])
        decode = None if _takes_message(annotation) else _decoder(handler, annotation, schema)
    wants_message = decode is not None and _wants_message(handler, parameters[1:])
    try:
        signature.bind(*["a payload", "a message"][: 1 + wants_message])
    except TypeError as error:
        raise ConfigError.bad("handler", handler, f"{_ACCEPTED} ({error})") from None
    if decode is None:
        return handler
    if wants_message:
        return lambda message: handler(decode(message), message)
    return lambda message: handler(decode(message))


# -- what a handler asks for ----------------------------------------------------------------------


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format  # of Python 3.14

        return inspect.signature(handler, annotation_format=Format.FORWARDREF)
    return inspect.signature(handler)


def _resolved(handler: Any, parameter: inspect.Parameter) -> Any:
    """Return the annotation of a parameter; annotations may be text, in whole or in part.

    Raises:
        ConfigError: a name in it is unknown where the function is defined.
    """

    def holder() -> None:
        """Have this one annotation: others need not be known."""

    holder.__annotations__ = {"it": parameter.annotation}
    function = _function(handler)
    names = getattr(function, "__globals__", None) or vars(inspect.getmodule(function) or typing)
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception as error:  # noqa: BLE001 - an annotation may be any expression
        accepted = (
            f"an annotation of {parameter.name!r} that can be resolved in the module of the "
            f"function ({shown(error)}); classes inside of a function, and imports for type "
            "checkers alone, cannot"
        )
        raise ConfigError.bad("handler", handler, accepted) from None


def _function(handler: Any) -> Any:
    """Return the function in which the parameters of *handler* are written."""
    while not inspect.isfunction(handler):
        if isinstance(handler, functools.partial):
            handler = handler.func
        elif inspect.ismethod(handler):
            handler = handler.__func__
        elif inspect.isfunction(call := getattr(type(handler), "__call__", None)):  # noqa: B004 - what it is
            handler = call
        else:
            return handler
    return inspect.unwrap(handler)


def _takes_message(annotation: Any) -> bool:
    kind, _ = _without_none(annotation)
    return kind in _ANYTHING or (isinstance(kind, type) and issubclass(kind, pulsar.Message))


def _wants_message(handler: Any, others: list[inspect.Parameter]) -> bool:
    """Tell whether a handler takes the message as its second argument.

    Raises:
        ConfigError: it requires something else.
    """
    if not others or others[0].kind not in {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    }:
        return False
    second = others[0]
    is_required = second.default is inspect.Parameter.empty
    is_named = second.annotation is not inspect.Parameter.empty
    if not is_required and not is_named:
        return False
    if _takes_message(_resolved(handler, second)):
        return True
    if is_required:
        accepted = f"{_ACCEPTED} ({second.name!r} is no pulsar.Message)"
        raise ConfigError.bad("handler", handler, accepted)
    return False


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return the type in ``T | None`` and ``Annotated[T, …]``, and whether None is allowed."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _without_none(members[0])
    if origin in {typing.Union, types.UnionType}:
        some = [each for each in members if each is not types.NoneType]
        if len(some) == 1:
            return _without_none(some[0])[0], True
    return annotation, False


# -- how it is decoded ----------------------------------------------------------------------------


def _decoder(handler: Any, annotation: Any, schema: Any) -> _Decode:
    """Return the function that decodes the payload of a message to what *annotation* names.

    Raises:
        ConfigError: there is no such function.
    """
    kind, is_optional = _without_none(annotation)
    kind = typing.get_origin(kind) or kind
    given = schema._record_cls
    name = getattr(kind, "__qualname__", str(kind))
    if not isinstance(kind, type) or kind in {*_UNDECODED, dict}:
        advice = ", or no annotation: then call message.data() or message.value()"
        raise ConfigError.bad("handler", handler, f"{_PAYLOADS}{advice}; not {annotation!r}")
    if given not in {*_UNDECODED, None}:
        if kind not in given.__mro__:
            accepted = f"a function of {given.__qualname__}, which the schema gives; not of {name}"
            raise ConfigError.bad("handler", handler, accepted)
        return _with_null(_value, name, is_optional=is_optional)
    if not _is_model(kind):
        raise ConfigError.bad("handler", handler, f"{_PAYLOADS}; not {annotation!r}")
    adapter = _adapter(handler, annotation)
    if given is None:
        decode = _checked(_value, adapter.validate_python, name)
    else:
        decode = _checked(_data, adapter.validate_json, name)
    return _with_null(decode, name, is_optional=is_optional)


def _value(message: Any) -> Any:
    return message.value()


def _data(message: Any) -> bytes:
    return message.data()  # type: ignore[no-any-return]


def _is_model(kind: type) -> bool:
    """Tell whether a class is a dataclass, a pydantic model or a TypedDict."""
    is_typed_dict = issubclass(kind, dict) and hasattr(kind, "__total__")
    return (
        is_typed_dict or dataclasses.is_dataclass(kind) or hasattr(kind, "__pydantic_validator__")
    )


def _adapter(handler: Any, annotation: Any) -> Any:
    need("typed", "a handler that takes its own type", "pydantic")
    from pydantic import TypeAdapter  # an extra

    try:
        adapter: Any = TypeAdapter(annotation)
        adapter.rebuild(raise_errors=True)
    except Exception as error:  # noqa: BLE001 - pydantic has several, and the class's own may come
        accepted = f"a type that pydantic can decode to ({shown(error)})"
        raise ConfigError.bad("handler", handler, accepted) from None
    return adapter


def _checked(read: _Decode, validate: Callable[[Any], Any], name: str) -> _Decode:
    """Return the function that reads a payload and validates it.

    The errors of *validate* say that the payload cannot be decoded; of the code of the user's class
    only `ValueError` and `TypeError` say that. What *read* raises is left as it is.
    """
    from pydantic import ValidationError  # an extra

    def checked(message: Any) -> Any:
        payload = read(message)
        try:
            return validate(payload)
        except ValidationError as error:
            raise _described(name, error) from None  # its text has parts of the payload
        except (ValueError, TypeError) as error:
            text = f"the payload is no {name}: {type(error).__qualname__}: {shown(error)}"
            raise UndecodableError(text) from error

    return checked


def _described(name: str, error: Any) -> UndecodableError:
    """Return the error for what pydantic has found."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    texts = [
        ": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"]]))
        for each in problems[:_MOST_PROBLEMS]
    ]
    more = len(problems) - len(texts)
    found = UndecodableError(
        f"the payload is no {name}: {'; '.join(texts)}{f'; and {more} more' if more else ''}"
    )
    found.kind = f"{name} {problems[0]['type']}"
    return found


def _with_null(decode: _Decode, name: str, *, is_optional: bool) -> _Decode:
    """Return *decode* for messages that may have a null value."""

    def decoded(message: Any) -> Any:
        if not raw_of(message).has_null_value():
            return decode(message)
        if is_optional:
            return None
        error = UndecodableError(f"the value is null, and no {name}")
        error.kind = f"{name} null"
        raise error

    return decoded
