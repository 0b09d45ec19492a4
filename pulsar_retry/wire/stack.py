"""What letters and the log say about an error: its class, text, traceback, place and fingerprint.

Formatting the frames costs more than everything else about a dead letter, and most errors of a
program are raised in few places, so each place is formatted once. Pure, apart from this cache and
from reading source lines.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import attrs

from pulsar_retry.errors import PulsarRetryError, attributes_of, shown, trace_of

#: How many places are remembered.
_MOST = 256

#: How many frames of a traceback are used: the innermost ones.
MAX_FRAMES = 30

#: The maximum characters of a traceback, before it is redacted and shortened.
_MAX_TRACEBACK = 65_536

#: This package, and the part of it that calls handlers.
_OURS = __name__.partition(".")[0]
_WORKERS = f"{_OURS}.pull.workers."

#: The name that a program's main module has in processes that it has spawned, and at home.
_SPAWNED, _MAIN = "__mp_main__", "__main__"

#: Where installed packages are, and Python's own.
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = ("<frozen ", str(Path(traceback.__file__).parent) + os.sep)

#: What an HTTP client's error has as its status.
_STATUSES = range(100, 600)

#: Their texts depend on more than their own frames.
_OTHERS = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)


@attrs.define
class Place:
    """A place that raises: the frames of a traceback.

    Attributes:
        function: The name of the application's innermost function, with its module; empty if the
            error was not raised.
        codes: The code of all frames. It is kept, so that no other code gets its id.
        text: The text of the innermost frames; None: nobody has asked for it.
    """

    function: str
    codes: list[CodeType]
    text: str | None = None


@attrs.frozen
class Description:
    """What is said about an error. An error of another process brings it along (`bring`).

    Attributes:
        name: The name of its class.
        text: Its text.
        traceback: Its traceback; None if it has none (`PulsarRetryError.kind`).
        place: Where in the application it was raised; empty if only this package was there.
        fingerprint: See `fingerprint_of`.
    """

    name: str
    text: str
    traceback: str | None
    place: str
    fingerprint: str


#: The attribute of an error that has the description that it has brought along.
_BROUGHT = "_pulsar_retry_description"


def described(error: BaseException) -> Description:
    """Return the description of *error*."""
    trace = traceback_of(error)
    return Description(
        name=name_of(error),
        text=text_of(error),
        traceback=trace and trace.replace(f"{_SPAWNED}.", ""),
        place=place_text(error),
        fingerprint=fingerprint_of(error),
    )


def bring(error: BaseException, description: Description) -> None:
    """Have *error*, which is a copy of an error of another process, described as that is there."""
    attributes_of(error)[_BROUGHT] = description


def _brought(error: BaseException) -> Description | None:
    """Return the description that *error* has brought along from another process, if any."""
    found: Description | None = attributes_of(error).get(_BROUGHT)
    return found


def name_of(error: BaseException) -> str:
    """Return the name of an error's class."""
    return known.name if (known := _brought(error)) else type(error).__qualname__


def text_of(error: BaseException) -> str:
    """Return the text of an error, even if its own `str` raises."""
    return known.text if (known := _brought(error)) else shown(error)


def traceback_of(error: BaseException) -> str | None:
    """Return an error's traceback; None if it has none, or its own code fails."""
    if (known := _brought(error)) is not None:
        return known.traceback
    if isinstance(error, PulsarRetryError) and error.kind is not None:
        return None
    try:
        return formatted(error)[-_MAX_TRACEBACK:]
    except Exception:  # noqa: BLE001 - it is the error's own code that fails
        return None


def place_text(error: BaseException) -> str:
    """Return where in the application *error* was raised; empty if only this package was there."""
    if (known := _brought(error)) is not None:
        return known.place
    if (own := own_frame(trace_of(error))) is None:
        return ""
    frame, line = own
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"


def of_handler(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins at the handler; None if it is not in there.

    The frames around it depend on where the handler runs.
    """
    inner = each = trace
    while each is not None:
        if str(each.tb_frame.f_globals.get("__name__")).startswith(_WORKERS):
            inner = each.tb_next
        each = each.tb_next
    while inner is not None and _is_of(inner.tb_frame, _OURS):  # around all handlers, as spans
        inner = inner.tb_next
    return inner


_places: dict[tuple[tuple[int, int], ...], Place] = {}


def place_of(trace: TracebackType | None) -> Place:
    """Return the place of a traceback."""
    key: list[tuple[int, int]] = []
    each = trace
    while each is not None:
        key.append((id(each.tb_frame.f_code), each.tb_lasti))
        each = each.tb_next
    if (known := _places.get(tuple(key))) is not None:
        return known
    own = own_frame(trace)
    function = f"{_module(own[0])}.{own[0].f_code.co_qualname}" if own else ""
    place = Place(function, [frame.f_code for frame, _ in traceback.walk_tb(trace)])
    if len(_places) >= _MOST:
        _places.clear()
    _places[tuple(key)] = place
    return place


def own_frame(trace: TracebackType | None) -> tuple[FrameType, int] | None:
    """Return the application's innermost frame in a traceback, and its line; None without frames.

    Libraries raise errors in few places, which say nothing about what the application did. An
    application that is itself installed as a package is told by the outermost frame. If there are
    only frames of libraries, it is the innermost one.
    """
    frames = [each for each in traceback.walk_tb(trace) if not _is_of(each[0], _OURS)]
    outside = [each for each in frames if _is_installed(each[0]) or not _is_standard(each[0])]
    own = [each for each in outside if not _is_installed(each[0])]
    if not own and outside:
        name = _module(outside[0][0])
        own = [each for each in outside if _is_of(each[0], name.partition(".")[0])]
    return next(reversed(own or frames), None)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).replace(_SPAWNED, _MAIN)


def _is_of(frame: FrameType, package: str) -> bool:
    """Tell whether a frame is in a package."""
    return _module(frame).partition(".")[0] == package


def _is_installed(frame: FrameType) -> bool:
    return any(each in frame.f_code.co_filename for each in _INSTALLED)


def _is_standard(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_STANDARD)


def fingerprint_of(error: BaseException) -> str:
    """Return a hash of an error's origin: its class, and the function of the application.

    The hash stays the same as long as the function keeps its name, and reveals no data. Errors of
    HTTP clients differ by their status, too. For an error with a kind (`PulsarRetryError`) it is a
    hash of the class and the kind.
    """
    if (known := _brought(error)) is not None:
        return known.fingerprint
    name = f"{type(error).__module__.replace(_SPAWNED, _MAIN)}.{type(error).__qualname__}"
    if isinstance(error, PulsarRetryError) and error.kind is not None:
        return _hash(name, error.kind)
    return _hash(name, _status(error), place_of(trace_of(error)).function)


def fingerprint_of_reason(reason: str) -> str:
    """Return the fingerprint of failures without an error."""
    return _hash(reason)


def _status(error: BaseException) -> str:
    """Return the HTTP status in an error of urllib, aiohttp, requests or httpx; else nothing."""
    try:
        response = getattr(error, "response", None)
        known = (getattr(error, "status", None), getattr(response, "status_code", None))
    except Exception:  # noqa: BLE001 - it is the error's own code that fails
        return ""
    for each in known:
        if isinstance(each, int) and each in _STATUSES:
            return str(each)
    return ""


@lru_cache(256)
def _hash(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(errors="replace"), digest_size=8).hexdigest()


def formatted(error: BaseException) -> str:
    """Return what `traceback.format_exception` returns for the innermost `MAX_FRAMES` frames.

    Raises:
        Exception: the error's own code has failed.
    """
    trace = error.__traceback__
    has_more = error.__cause__ or (error.__context__ and not error.__suppress_context__)
    if trace is None or has_more or isinstance(error, _OTHERS):
        return "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    place = place_of(trace)
    if place.text is None:
        place.text = "".join(traceback.format_tb(trace, limit=-MAX_FRAMES))
    return f"Traceback (most recent call last):\n{place.text}{_last_line(error)}"


def _last_line(error: BaseException) -> str:
    """Return what `traceback.format_exception_only` returns, which takes several times as long."""
    try:
        text = None if hasattr(error, "__notes__") else str(error)
    except Exception:  # noqa: BLE001 - it is the error's own code that fails
        text = None
    if text is None:
        return "".join(traceback.format_exception_only(error))
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in {"__main__", "builtins"}:
        name = f"{kind.__module__}.{name}"
    return f"{name}: {text}\n" if text else f"{name}\n"
