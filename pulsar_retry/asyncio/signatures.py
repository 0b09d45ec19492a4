"""Gives methods for asyncio the parameters and the docstrings of their blocking twins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import WRAPPER_ASSIGNMENTS, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


def taking(
    original: Callable[Concatenate[Any, P], Any], assigned: Sequence[str] = WRAPPER_ASSIGNMENTS
) -> Callable[[Callable[Concatenate[Self, ...], R]], Callable[Concatenate[Self, P], R]]:
    """Give a method the parameters and docstring of *original*, but keep its return type.

    *assigned* are the attributes of *original* that it gets besides.
    """

    def decorate(method: Callable[..., R]) -> Callable[Concatenate[Self, P], R]:
        returns = inspect.signature(method).return_annotation
        made: Any = wraps(original, assigned)(method)
        made.__signature__ = inspect.signature(original).replace(return_annotation=returns)
        return cast("Callable[Concatenate[Self, P], R]", made)

    return decorate
