"""Orders for held keys, whose log is slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.replay.waiting import lanes
from pulsar_retry.replay.waiting.lanes import HeldKeys
from pulsar_retry.wire.lanes import Head


class Log:
    """Stores what is written if *stores*, and is read at once, with or without the order."""

    def __init__(self, *, stores: bool, taken: bool) -> None:
        self._stores, self._taken = stores, taken
        self.view = SimpleNamespace(
            is_held=lambda _: True, heads={"k": Head("k", entry="1:1")}, orders={}
        )
        self.passed = 0

    def write(self, order: Any, *, stored: Any = lambda: None) -> None:
        if self._stores:
            stored()
            self.view.orders = {} if self._taken else {"k": order}

    def ticket(self) -> int:
        self.passed += 1
        return self.passed


def order(monkeypatch: Any, **how: bool) -> bool:
    """Give an order with a log of this kind."""
    monkeypatch.setattr(lanes, "_SOON", 0.2)
    keys: Any = HeldKeys(None, None, Log(**how), None, "s")
    return bool(keys.order("k", "retry"))


def test_an_order_that_is_not_stored_was_not_taken(monkeypatch) -> None:
    """A log that does not show it is no proof; nothing was ordered yet."""
    with pytest.raises(PulsarRetryError, match="not stored"):
        order(monkeypatch, stores=False, taken=False)


def test_an_order_that_is_taken_at_once(monkeypatch) -> None:
    """It was taken although nobody saw it in the log."""
    assert order(monkeypatch, stores=True, taken=True)
    assert not order(monkeypatch, stores=True, taken=False)
