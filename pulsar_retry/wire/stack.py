"""The text of a traceback, whose frames are formatted once for each place that raises.

Formatting the frames costs more than everything else about a dead letter, and most errors of a
program are raised in few places. Pure, apart from the cache and from reading source lines.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

#: How many places are remembered.
_MOST = 256

#: Their texts depend on more than their own frames.
_OTHERS = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)

_texts: dict[tuple[int, tuple[tuple[int, int], ...]], tuple[str, list[CodeType]]] = {}


def formatted(error: BaseException, most: int) -> str:
    """Return what `traceback.format_exception` returns for the innermost *most* frames.

    Raises:
        Exception: the error's own code has failed.
    """
    trace = error.__traceback__
    has_more = error.__cause__ or (error.__context__ and not error.__suppress_context__)
    if trace is None or has_more or isinstance(error, _OTHERS):
        return "".join(traceback.format_exception(error, limit=-most))
    only = "".join(traceback.format_exception_only(error))
    return f"Traceback (most recent call last):\n{_frames(trace, most)}{only}"


def _frames(trace: TracebackType, most: int) -> str:
    """Return the text of the innermost *most* frames."""
    place: list[tuple[int, int]] = []
    codes: list[CodeType] = []
    each: TracebackType | None = trace
    while each is not None:
        code = each.tb_frame.f_code
        codes.append(code)
        place.append((id(code), each.tb_lasti))
        each = each.tb_next
    key = most, tuple(place)
    if (known := _texts.get(key)) is not None:
        return known[0]
    text = "".join(traceback.format_tb(trace, limit=-most))
    if len(_texts) >= _MOST:
        _texts.clear()
    _texts[key] = text, codes  # kept, so that no other code gets its id
    return text
