"""What letters tell of failures, and how they count where a policy has decided."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.letters.letter import FailureDetails, dead_lettered, retried
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.outcomes import RetryLater
from pulsar_retry.wire.properties import Origin

DLQ = "persistent://public/default/orders-billing-DLQ"
ORIGIN = Origin("persistent://public/default/orders", "1:0:-1", "billing")
WHEN = datetime(2026, 5, 1, tzinfo=UTC)


def details(error: BaseException | None = None, **changes: Any) -> FailureDetails:
    """Return what is told of a first attempt that failed."""
    return attrs.evolve(FailureDetails(error, 1, WHEN, WHEN), **changes)


def test_a_dead_letter_by_hand_says_why(plan_of: Callable[..., Plan]) -> None:
    """The whole envelope, and the caller's properties; the count stays as it was."""
    carried = {"RECONSUMETIMES": "7", "FAILURE_MESSAGE": "of an earlier failure"}
    custom = {"line": "4", "FAILURE_STAGE": "decode"}
    letter = dead_lettered(
        plan_of(),
        carried,
        ORIGIN,
        custom=custom,
        reason="invalid",
        details=details(KeyError("price")),
    )
    failure = pr.DeadLetter.read(letter.properties).failure
    assert ("7", "4") == (letter.properties["RECONSUMETIMES"], letter.properties["line"])
    assert ("invalid", "decode", "KeyError", "'price'") == (
        failure.reason,
        failure.stage,
        failure.error,
        failure.message,
    )
    assert "1" == letter.properties["FAILURE_ATTEMPT"]
    assert failure.fingerprint is not None
    assert failure.published == failure.when == WHEN


@given(st.text(st.characters()) | st.integers(2000, 9000).map("x".__mul__))
def test_what_a_dead_letter_by_hand_says_is_bounded_and_encodable(
    plan_of: Callable[..., Plan], text: str
) -> None:
    """8 KiB at most, and never a lone surrogate: no client could read it."""
    bare = dead_lettered(plan_of(), {}, ORIGIN)
    letter = dead_lettered(plan_of(), {}, ORIGIN, reason=text, details=details(ValueError(text)))
    size = sum(len((name + value).encode()) for name, value in letter.properties.items())
    assert size - sum(len(name + value) for name, value in bare.properties.items()) <= 8192


def test_an_error_that_cannot_be_shown_is_no_obstacle(plan_of: Callable[..., Plan]) -> None:
    """The message must reach the dead-letter topic all the same."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    Broken.__qualname__ = "\ud800Broken"
    letter = dead_lettered(plan_of(), {}, ORIGIN, reason="bad", details=details(Broken()))
    assert ("?Broken", "<?Broken that cannot be shown>") == (
        letter.properties["FAILURE_ERROR"],
        letter.properties["FAILURE_MESSAGE"],
    )


def test_who_brings_a_dead_letter_back_begins_anew(plan_of: Callable[..., Plan]) -> None:
    """What stood for this life of the message alone stays behind."""
    carried = {"FAILURE_STAMP": "7", "FAILURE_CRASHES": "2"}
    letter = dead_lettered(plan_of(), carried, ORIGIN, reason="bad", details=details())
    assert not letter.properties.keys() & carried


def test_a_policys_retry_is_counted_as_it_says(plan_of: Callable[..., Plan]) -> None:
    """A deferral leaves the count and the envelope as they were."""
    letter = retried(
        plan_of(),
        RetryLater(5),
        {},
        ORIGIN,
        details=details(KeyError("k"), attempt=3),
        custom={"a": "b"},
    )
    carried = letter.properties
    assert ("3", "5000", "KeyError", "b") == (
        carried["RECONSUMETIMES"],
        carried["DELAY_TIME"],
        carried["FAILURE_ERROR"],
        carried["a"],
    )
    again = retried(
        plan_of(),
        RetryLater(7, counted=False),
        carried,
        ORIGIN,
        details=details(ValueError(), attempt=3),
        custom={},
    )
    assert {**carried, "DELAY_TIME": "7000"} == again.properties
    assert (7, 3, 4) == (again.delay, letter.attempt, again.attempt)


def test_used_up_is_counted_where_letters_are(plan_of: Callable[..., Plan]) -> None:
    """As in Java one more than the retries; without retry letters there is no count."""
    how: Any = {"reason": "retries-exhausted", "details": details(attempt=5), "used_up": True}
    counted = dead_lettered(plan_of(), {}, ORIGIN, **how)
    assert ("5", DLQ, True) == (counted.properties["RECONSUMETIMES"], counted.topic, counted.dead)
    policy = pr.DeadLetterPolicy(4)
    plan = plan_of(enable_retry=False, dead_letter_policy=policy)
    assert "RECONSUMETIMES" not in dead_lettered(plan, {}, ORIGIN, **how).properties
