"""Whether a reader has more to read, if the connection may be lost while it asks."""

from __future__ import annotations

import attrs
import pulsar
import pytest

from pulsar_retry.runtime.upstream import has_message


@attrs.define
class Reader:
    """Gives answers, one after the other."""

    answers: list[bool]
    is_up: bool = True

    def has_message_available(self) -> bool:
        return self.answers.pop(0)

    def is_connected(self) -> bool:
        return self.is_up


def test_an_answer_is_believed_only_with_a_connection() -> None:
    """pulsar-client says that there is nothing if the connection is lost while it asks."""
    assert has_message(Reader([True], is_up=False))  # it knows
    assert not has_message(Reader([False, False]))
    with pytest.raises(pulsar.NotConnected):
        has_message(Reader([False], is_up=False))


def test_a_connection_that_is_back_at_once() -> None:
    """The second answer counts."""
    assert has_message(Reader([False, True]))
