"""What a traceback says, read once for each place that raises.

Formatting the frames costs more than everything else about a dead letter, and most errors of a
program are raised in few places. Pure, apart from the cache and from reading source lines.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

import attrs

#: How many places are remembered.
_MOST = 256

#: How many frames of a traceback are used: the innermost ones.
MAX_FRAMES = 30

#: Their texts depend on more than their own frames.
_OTHERS = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)


@attrs.define
class Place:
    """A place that raises: the frames of a traceback.

    Attributes:
        functions: The names of the innermost functions, with their modules.
        codes: The code of all frames. It is kept, so that no other code gets its id.
        text: The text of the innermost frames; None: nobody has asked for it.
    """

    functions: list[str]
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
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    place = Place(
        [f"{f.f_globals.get('__name__')}.{f.f_code.co_qualname}" for f in frames[-MAX_FRAMES:]],
        [frame.f_code for frame in frames],
    )
    if len(_places) >= _MOST:
        _places.clear()
    _places[tuple(key)] = place
    return place


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
