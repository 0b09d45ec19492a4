"""What an error's traceback says, read once for each place that raises, and its fingerprint.

Formatting the frames costs more than everything else about a dead letter, and most errors of a
program are raised in few places. Pure, apart from the cache and from reading source lines.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import attrs

from pulsar_retry.errors import PulsarRetryError

#: How many places are remembered.
_MOST = 256

#: How many frames of a traceback are used: the innermost ones.
MAX_FRAMES = 30

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
    frames = [each for each in traceback.walk_tb(trace) if not _is_of(each[0], __name__)]
    outside = [each for each in frames if _is_installed(each[0]) or not _is_standard(each[0])]
    own = [each for each in outside if not _is_installed(each[0])]
    if not own and outside:
        name = _module(outside[0][0])
        own = [each for each in outside if _is_of(each[0], name)]
    return next(reversed(own or frames), None)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_of(frame: FrameType, module: str) -> bool:
    """Tell whether a frame is in the package of *module*."""
    return _module(frame).partition(".")[0] == module.partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    return any(each in frame.f_code.co_filename for each in _INSTALLED)


def _is_standard(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_STANDARD)


def fingerprint_of(error: BaseException | None, reason: str | None) -> str | None:
    """Return a hash of an error's origin: its class, and the function of the application.

    The hash stays the same as long as the function keeps its name, and reveals no data. Errors of
    HTTP clients differ by their status, too. For an error with a kind (`PulsarRetryError`) it is a
    hash of the class and the kind.
    """
    if error is None:
        return None if reason is None else _hash(reason)
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    if (kind := _kind(error)) is not None:
        return _hash(name, kind)
    return _hash(name, _status(error), place_of(error.__traceback__).function)


def _status(error: BaseException) -> str:
    """Return the HTTP status in an error of urllib, aiohttp, requests or httpx; else nothing."""
    try:
        response = getattr(error, "response", None)
        known = (getattr(error, "status", None), getattr(response, "status_code", None))
    except Exception:  # noqa: BLE001 - it is the error's own code that fails
        return ""
    return next((str(each) for each in known if isinstance(each, int) and each in _STATUSES), "")


def _kind(error: BaseException) -> str | None:
    return error.kind if isinstance(error, PulsarRetryError) else None


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
