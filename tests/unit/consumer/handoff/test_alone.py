"""A letter that is published by a client of its own, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import _pulsar
import pulsar
import pytest

from pulsar_retry.consumer.handoff.alone import Alone


def client_of(result: _pulsar.Result) -> Any:
    """Return a client whose letters have this result, and that cannot be closed."""

    def close() -> None:
        raise pulsar.Timeout("not closed")

    raw = SimpleNamespace(send_async=lambda _message, answer: answer(result, None))
    return SimpleNamespace(
        _client=object(),
        create_producer=lambda _topic, **_: SimpleNamespace(_producer=raw),
        close=close,
    )


def publish(result: _pulsar.Result) -> None:
    """Publish a letter so."""
    with Alone(
        lambda: client_of(result), "retries", {}, is_reachable=lambda: True, timeout=20
    ) as alone:
        alone.publish(object())


def test_a_client_that_is_not_closed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The letter is out all the same."""
    publish(_pulsar.Result.Ok)
    assert "a letter to retries could not be closed" in caplog.text


def test_the_letters_own_error_is_what_is_raised() -> None:
    """Whatever else goes wrong after it."""
    with pytest.raises(pulsar.MessageTooBig):
        publish(_pulsar.Result.MessageTooBig)
