"""A letter that is published by a client of its own, without a broker."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import _pulsar
import pulsar
import pytest

from pulsar_retry.consumer.handoff import alone as module
from pulsar_retry.consumer.handoff.alone import Alone, RefusedError


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
        alone.publish(object(), object)


def test_a_client_that_is_not_closed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The letter is out all the same."""
    publish(_pulsar.Result.Ok)
    assert "a letter to retries could not be closed" in caplog.text


def test_the_letters_own_error_is_what_is_raised() -> None:
    """Whatever else goes wrong after it."""
    with pytest.raises(pulsar.MessageTooBig):
        publish(_pulsar.Result.MessageTooBig)


def cut_off() -> Any:
    """Return a client whose connection is lost with the first letter."""
    raw = SimpleNamespace(send_async=lambda _message, _answer: None, is_connected=lambda: False)
    return SimpleNamespace(
        _client=object(),
        create_producer=lambda _topic, **_: SimpleNamespace(_producer=raw),
        close=lambda: None,
    )


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_lost_connection_is_no_refusal(is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The letter is built and sent again; it is refused if the new connection is closed, too."""
    monkeypatch.setattr(module, "LOOK", 0.001)
    clients = [cut_off(), cut_off() if is_refused else client_of(_pulsar.Result.Ok)]
    built: list[object] = []
    refusal = pytest.raises(RefusedError) if is_refused else contextlib.nullcontext()
    made = Alone(lambda: clients.pop(0), "retries", {}, is_reachable=lambda: True, timeout=20)
    with made as alone, refusal:
        alone.publish(object(), lambda: built.append(1))
    assert ([1], []) == (built, clients)
