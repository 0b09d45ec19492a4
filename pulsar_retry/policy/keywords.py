"""A clear error for classes that accept keyword arguments only."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar, cast

import attrs

Class = TypeVar("Class", bound=type[Any])


def keywords_only(cls: Class) -> Class:
    """Make an attrs class show, in its error for positional arguments, the correct spelling."""
    made = cls.__init__

    @wraps(made)
    def init(self: Any, *positional: object, **named: object) -> None:
        if positional:
            example = f"{cls.__name__}({attrs.fields(cls)[0].name}={positional[0]!r})"
            text = f"{cls.__name__} takes keyword arguments only, for example {example}"
            raise TypeError(text)
        made(self, **named)

    cls.__init__ = cast("Any", init)
    return cls
