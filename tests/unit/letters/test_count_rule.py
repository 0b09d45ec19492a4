"""N retries, N + 1 deliveries, then the dead-letter topic: the whole life of a message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.letters.letter import DelayRequest, Letter, dead_lettered, reconsumed
from pulsar_retry.letters.plan import Plan
from pulsar_retry.wire.properties import Origin

MAIN = "persistent://public/default/orders"
RETRY = f"{MAIN}-billing-RETRY"
DLQ = f"{MAIN}-billing-DLQ"

LIMITS = st.integers(0, 60)


def life(
    plan: Plan, asked: DelayRequest, carried: dict[str, str] | None = None
) -> Iterator[Letter]:
    """Deliver a message and reconsume it until it is dead; yield each letter."""
    carried, topic, entry = carried or {}, MAIN, 0
    while True:
        origin = Origin(topic, f"1:{entry}:-1", plan.subscription)
        letter = reconsumed(plan, asked, carried, origin, None)
        yield letter
        if letter.dead:
            return
        carried, topic, entry = letter.properties, letter.topic, entry + 1


AUTOMATIC = DelayRequest(delay=None, level=None)


@given(LIMITS, st.integers(0, 100))
def test_n_retries_and_then_the_end(plan_of: Callable[..., Plan], limit: int, hops: int) -> None:
    """N letters, less those of other clients; each counts one more, and tells of the first."""
    plan = plan_of(dead_letter_policy=pr.DeadLetterPolicy(limit))
    letters = list(life(plan, AUTOMATIC, {"RECONSUMETIMES": str(hops)} if hops else {}))
    assert [RETRY] * max(0, limit - hops) + [DLQ] == [letter.topic for letter in letters]
    for count, letter in enumerate(letters, hops + 1):
        read = pr.RetryProperties.read(letter.properties)
        assert (count, MAIN, "1:0:-1", "billing") == (
            read.reconsume_times,
            read.real_topic,
            read.origin_message_id,
            read.real_subscription,
        )


@given(LIMITS)
def test_a_garbage_count_starts_anew(plan_of: Callable[..., Plan], limit: int) -> None:
    """It counts as 0: never a crash, never a retry for ever."""
    plan = plan_of(dead_letter_policy=pr.DeadLetterPolicy(limit))
    assert limit + 1 == len(list(life(plan, AUTOMATIC, {"RECONSUMETIMES": "many"})))


def test_without_a_policy_there_are_sixteen_retries(plan_of: Callable[..., Plan]) -> None:
    """The default of Java, Go and TDMQ."""
    assert 17 == len(list(life(plan_of(), AUTOMATIC)))


def test_the_automatic_level_is_the_number_of_the_retry(plan_of: Callable[..., Plan]) -> None:
    """The first retry waits for level 1; above the table, its last level holds."""
    plan = plan_of(dead_letter_policy=pr.DeadLetterPolicy(4), delay_levels="1s 5s 10s")
    letters = list(life(plan, AUTOMATIC))
    assert [1, 5, 10, 10, 0] == [letter.delay for letter in letters]
    assert ["1000", "5000", "10000", "10000", "10000"] == [
        letter.properties["DELAY_TIME"] for letter in letters
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"delay": 0}, ("-1", 0)),
        ({"delay": 2.5}, ("-1", 2.5)),
        ({"delay": timedelta(seconds=2.5)}, ("-1", 2.5)),
        ({"level": 0}, ("0", 0)),
        ({"level": 2}, ("2", 5)),
        ({"level": 99}, ("3", 10)),
        ({}, ("1", 1)),
    ],
)
def test_tdmq_writes_the_level_and_minus_one_for_a_delay(
    plan_of: Callable[..., Plan], asked: dict, expected: tuple[str, float]
) -> None:
    """DELAY is the level that took effect."""
    plan = plan_of(naming=pr.Naming.TDMQ_2_9_2, delay_levels="1s 5s 10s")
    letter = next(life(plan, DelayRequest.of(plan, asked.get("delay"), asked.get("level"))))
    assert expected == (letter.properties["DELAY"], letter.delay)


def test_retry_letters_alone_name_the_retry_topic(plan_of: Callable[..., Plan]) -> None:
    """The first hop writes it; then the dead letter carries it as one of its originals."""
    [dead] = life(plan_of(dead_letter_policy=pr.DeadLetterPolicy(0)), AUTOMATIC)
    retry = next(life(plan_of(), AUTOMATIC))
    assert (None, RETRY) == (
        dead.properties.get("RETRY_TOPIC"),
        retry.properties.get("RETRY_TOPIC"),
    )


def test_a_dead_letter_says_the_delay_but_is_not_delayed(plan_of: Callable[..., Plan]) -> None:
    """DELAY_TIME is what was asked for."""
    plan = plan_of(dead_letter_policy=pr.DeadLetterPolicy(0))
    [dead] = life(plan, DelayRequest.of(plan, 30, None))
    assert (0, "30000") == (dead.delay, dead.properties["DELAY_TIME"])


@pytest.mark.parametrize(
    ("delay", "level", "names"),
    [
        (-1, None, "delay=-1"),
        (864_001, None, "delay=864001"),
        ("5", None, "delay='5'"),
        (None, -1, "level=-1"),
        (None, 1.5, "level=1.5"),
        (1, 1, "level=1"),
    ],
)
def test_a_bad_wish_is_refused(
    plan_of: Callable[..., Plan], delay: Any, level: Any, names: str
) -> None:
    """Before anything is sent, and by the argument's name and value."""
    with pytest.raises(pr.ConfigError, match=f"^{names}: expected "):
        DelayRequest.of(plan_of(), delay, level)


def test_reconsuming_needs_retries(plan_of: Callable[..., Plan]) -> None:
    """The error says which argument turns them on."""
    plan = plan_of(enable_retry=False, dead_letter_policy=pr.DeadLetterPolicy(3))
    with pytest.raises(pr.ConfigError, match="enable_retry=True"):
        DelayRequest.of(plan, None, None)


def test_dead_lettering_needs_a_policy(plan_of: Callable[..., Plan]) -> None:
    """The error says which arguments give one."""
    with pytest.raises(pr.ConfigError, match="enable_retry=True or a dead_letter_policy"):
        dead_lettered(plan_of(enable_retry=False), {}, Origin(MAIN, "1:0:-1", "billing"))


def test_the_callers_properties_are_checked(plan_of: Callable[..., Plan]) -> None:
    """Nobody can reset a count by accident, on either way to the dead-letter topic."""
    plan, origin, custom = plan_of(), Origin(MAIN, "1:0:-1", "billing"), {"RECONSUMETIMES": "0"}
    with pytest.raises(pr.ConfigError, match="RECONSUMETIMES, which the system uses"):
        reconsumed(plan, AUTOMATIC, {}, origin, custom)
    with pytest.raises(pr.ConfigError, match="RECONSUMETIMES, which the system uses"):
        dead_lettered(plan, {}, origin, custom=custom)


@pytest.mark.parametrize(
    ("changes", "delivered_from", "expected"),
    [
        ({}, f"{MAIN}-partition-2", DLQ),
        ({"enable_retry": False}, MAIN, DLQ),
        ({"enable_retry": False}, f"{MAIN}-partition-2", f"{MAIN}-partition-2-billing-DLQ"),
        (
            {"enable_retry": False, "dead_letter_policy": pr.DeadLetterPolicy(2, None, "lost")},
            f"{MAIN}-partition-2",
            "lost",
        ),
    ],
)
def test_dead_letters_go_where_javas_go(
    plan_of: Callable[..., Plan], changes: dict, delivered_from: str, expected: str
) -> None:
    """One topic with retries, one per partition without, unless the policy names one."""
    plan = plan_of(**{"dead_letter_policy": pr.DeadLetterPolicy(2)} | changes)
    letter = dead_lettered(plan, {}, Origin(delivered_from, "1:0:2", "billing"))
    assert (expected, True, 0.0) == (letter.topic, letter.dead, letter.delay)


@pytest.mark.parametrize("reason", [5, b"late", ValueError("late")])
def test_a_reason_is_text(plan_of: Callable[..., Plan], reason: object) -> None:
    """Whatever else is refused before anything is sent."""
    with pytest.raises(
        pr.ConfigError, match=f"^{re.escape(f'reason={reason!r}: expected a str')}$"
    ):
        dead_lettered(plan_of(), {}, Origin(MAIN, "1:0:-1", "billing"), reason=reason)  # type: ignore[arg-type]
