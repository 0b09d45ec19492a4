"""Errors that both `pulsar` and `pulsar.asyncio` know by name."""

from __future__ import annotations

import pulsar
import pulsar.asyncio
import pytest

import pulsar_retry as pr
from pulsar_retry.asyncio.bridge import failure, translating_errors

Result = pulsar.Result


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (pulsar.Timeout("Pulsar error: Timeout"), Result.Timeout),
        (pulsar.PulsarException("something"), Result.UnknownError),
        (pr.ConsumerClosedError("the consumer is closed"), Result.AlreadyClosed),
        (pr.AcknowledgeError("not acknowledged"), Result.UnknownError),
        (pr.LetterPublishError("orders-DLQ", pulsar.Timeout("late")), Result.UnknownError),
    ],
)
def test_each_has_both_names(error: Exception, result: Result) -> None:
    """And says the same, with the same attributes; asked again, it stays as it is."""
    both = failure(error)
    assert isinstance(both, type(error))
    assert isinstance(both, pulsar.asyncio.PulsarException)
    assert (str(error), error.args, result) == (str(both), both.args, both.error())
    assert vars(error).items() <= vars(both).items()
    assert both is failure(both)


def test_the_cause_gives_the_result() -> None:
    """A letter that was not published in time: `error()` says that it was the time."""
    error = pr.LetterPublishError("orders-DLQ", pulsar.Timeout("late"))
    error.__cause__ = pulsar.Timeout("late")
    with pytest.raises(pulsar.asyncio.PulsarException) as raised, translating_errors():
        raise error
    assert (Result.Timeout, error.__cause__) == (raised.value.error(), raised.value.__cause__)


@pytest.mark.parametrize("error", [ValueError("x"), pr.ConfigError("x"), pr.EventLoopError("x")])
def test_others_stay_as_they_are(error: Exception) -> None:
    """They are no errors of pulsar-client's."""
    assert error is failure(error)
