"""Where letters are handed off, for tests that run on both paths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pulsar_retry.native import loading


@contextmanager
def in_python(*, asked: bool) -> Iterator[None]:
    """If *asked*, have the consumers that are made meanwhile hand letters off in Python."""
    if not asked:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(loading.VARIABLE, "0")
        loading.native.cache_clear()
        try:
            yield
        finally:
            loading.native.cache_clear()
