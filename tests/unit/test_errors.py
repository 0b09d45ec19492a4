"""The errors of the package: what else they are, and what they carry."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry import _lazy, errors


def test_every_error_of_the_package_is_of_the_family() -> None:
    """One `except pr.PulsarRetryError` catches all that is ours."""
    defined = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    ]
    assert defined == [kind for kind in defined if issubclass(kind, pr.PulsarRetryError)]
    listed = {name for name, module in _lazy.ORIGINS.items() if module == errors.__name__}
    assert {kind.__name__ for kind in defined} == listed


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (pr.ConfigError, (ValueError,)),
        (pr.ForkedError, (RuntimeError,)),
        (pr.SettleError, (pulsar.PulsarException,)),
        (pr.LetterPublishError, (pr.SettleError, pulsar.PulsarException)),
        (pr.AcknowledgeError, (pr.SettleError, pulsar.PulsarException)),
        (pr.ConsumerClosedError, (pulsar.AlreadyClosed, pulsar.PulsarException)),
        (pr.BatchSettleError, (ExceptionGroup,)),
    ],
)
def test_existing_handlers_catch_them(kind: type[Exception], bases: tuple[type, ...]) -> None:
    """Each is also what code written for Python or pulsar-client catches already."""
    assert bases == tuple(base for base in bases if issubclass(kind, base))


def test_a_publish_error_names_its_topic() -> None:
    """In the text and as an attribute."""
    error = pr.LetterPublishError("orders-DLQ", "no quota")
    assert ("could not publish to orders-DLQ: no quota", "orders-DLQ") == (
        str(error),
        error.topic,
    )


def test_a_value_that_cannot_be_shown_is_named_all_the_same() -> None:
    """An error's own text must not fail: whoever made it has a message to bring back."""

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    broken = Broken()
    text = f"<{Broken.__qualname__} that cannot be shown>"
    assert (f"level={text}: expected 0", f"could not publish to lost: {text}") == (
        str(pr.ConfigError.bad("level", broken, "0")),
        str(pr.LetterPublishError("lost", broken)),
    )


def pickled(error: Exception) -> Exception:
    """Return what another process gets."""
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("twin", [copy.copy, pickled])
@pytest.mark.parametrize(
    "error",
    [
        pr.ConfigError.bad("level", -1, "0 or more"),
        pr.LetterPublishError("orders-DLQ", "no quota"),
        pr.LetterPublishError("orders-DLQ", ValueError(lambda: None)),
        pr.AcknowledgeError("gone"),
        pr.BatchSettleError("1 of 2", [pr.LetterPublishError("orders-DLQ", "no quota")], [1]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_boundaries(
    error: Exception, twin: Callable[[Exception], Exception]
) -> None:
    """A pool of processes, or Spark, hands them back as they were raised."""
    copied = twin(error)
    assert (type(error), str(error), repr(error), vars(error)) == (
        type(copied),
        str(copied),
        repr(copied),
        vars(copied),
    )


@pytest.fixture
def batch_error() -> pr.BatchSettleError:
    """Return the error of a list whose messages 1, 4 and 5 failed."""
    failures = [
        pr.LetterPublishError("orders-DLQ", "no quota"),
        pr.AcknowledgeError("gone"),
        pr.LetterPublishError("orders-RETRY", "no quota"),
    ]
    return pr.BatchSettleError("3 of 6 messages failed", failures, [1, 4, 5])


def test_a_batch_error_splits_with_its_positions(batch_error: pr.BatchSettleError) -> None:
    """Each part is a batch error of its own that knows which messages it is about."""
    match, rest = batch_error.split(pr.LetterPublishError)
    assert ((1, 5), (4,)) == (match.failed, rest.failed)
    assert (pr.BatchSettleError, pr.BatchSettleError) == (type(match), type(rest))
    first, second, third = batch_error.exceptions
    assert ((first, third), (second,)) == (match.exceptions, rest.exceptions)


def test_a_batch_error_can_be_caught_in_parts(batch_error: pr.BatchSettleError) -> None:
    """`except*` takes what it names and leaves the rest."""
    taken: list[tuple[int, ...]] = []

    def settle() -> None:
        try:
            raise batch_error
        except* pr.AcknowledgeError as group:
            taken.append(group.failed)

    with pytest.raises(pr.BatchSettleError) as left:
        settle()
    assert ([(4,)], (1, 5)) == (taken, left.value.failed)


def test_a_batch_error_is_a_pulsar_retry_error(batch_error: pr.BatchSettleError) -> None:
    """It is caught whole by the base of the family, too."""
    with pytest.raises(pr.PulsarRetryError) as caught:
        raise batch_error
    assert batch_error is caught.value
