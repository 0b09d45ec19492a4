"""What users see of `pr.admin` and `pr.replay`: names, docstrings, arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import pulsar_retry as pr

PARTS = (pr.admin, pr.replay)


def names_of(part: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a part, and of what its classes define themselves."""
    for name in part.__all__:
        value = getattr(part, name)
        yield name, value
        if inspect.isclass(value):
            for member, each in vars(value).items():
                function = getattr(each, "__func__", each)
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{member}", function


PUBLIC = [pytest.param(*each, id=each[0]) for part in PARTS for each in names_of(part)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_all_is_what_is_public(part) -> None:
    """Sorted, classes first, and each name is there."""
    assert part.__all__ == sorted(part.__all__, key=lambda name: (name[0].islower(), name))
    assert all(hasattr(part, name) for name in part.__all__)


@pytest.mark.parametrize(("name", "value"), PUBLIC)
def test_every_name_is_documented(name, value) -> None:
    """And says what every argument is called."""
    assert value.__doc__, name
    if inspect.isfunction(value):
        kinds = {each.kind for each in inspect.signature(value).parameters.values()}
        assert set() == kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
