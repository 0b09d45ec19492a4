"""What a subscription is asked to do is checked and worked out before anything is opened."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.letters.plan import Plan
from pulsar_retry.wire.names import LetterTopics

ORDERS = "persistent://public/default/orders"
A_TOPIC = "a topic: t, tenant/namespace/t or persistent://tenant/namespace/t"
OTHER_TOPIC = "a topic that is neither consumed here nor the dead-letter topic"
LEVELS = 'levels such as "1s 5s 10s 1m 2h" of at most 864000 s each'
PATTERN = re.compile("public/default/o.*")
NOTHING = object()
READER = object()


def policy(**names: str) -> pr.DeadLetterPolicy:
    """Return a policy that names topics."""
    return pr.DeadLetterPolicy(**names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"enable_retry": 1}, "enable_retry=1: expected a bool"),
        ({"enable_retry": None}, "enable_retry=None: expected a bool"),
        (
            {"topic": PATTERN},
            (
                f"topic={PATTERN!r}: expected a topic or a list of topics: "
                "enable_retry needs to know their names"
            ),
        ),
        ({"topic": ""}, "topic='': expected a topic or a list of topics"),
        ({"topic": []}, "topic=[]: expected a topic or a list of topics"),
        ({"topic": None}, "topic=None: expected a topic or a list of topics"),
        ({"topic": ("orders",)}, "topic=('orders',): expected a topic or a list of topics"),
        ({"topic": "a/b"}, f"topic='a/b': expected {A_TOPIC}"),
        ({"topic": ["orders", "a/b"]}, f"topic='a/b': expected {A_TOPIC}"),
        ({"topic": ["orders", 5]}, f"topic=5: expected {A_TOPIC}"),
        ({"subscription": ""}, "subscription_name='': expected a name that is not blank"),
        ({"subscription": " \t"}, "subscription_name=' \\t': expected a name that is not blank"),
        ({"subscription": None}, "subscription_name=None: expected a name that is not blank"),
        (
            {"receiver_queue_size": 0},
            "receiver_queue_size=0: expected 1 or more, because enable_retry reads from two topics",
        ),
        (
            {"dead_letter_policy": NOTHING},
            (
                f"dead_letter_policy={NOTHING!r}: expected "
                "a pulsar_retry.DeadLetterPolicy or a pulsar.ConsumerDeadLetterPolicy"
            ),
        ),
        (
            {"dead_letter_policy": policy(retry_letter_topic="a/b")},
            f"retry_letter_topic='a/b': expected {A_TOPIC}",
        ),
        (
            {"dead_letter_policy": policy(dead_letter_topic="a/b")},
            f"dead_letter_topic='a/b': expected {A_TOPIC}",
        ),
        (
            {"dead_letter_policy": policy(dead_letter_topic="a/b"), "enable_retry": False},
            f"dead_letter_topic='a/b': expected {A_TOPIC}",
        ),
        (
            {"dead_letter_policy": policy(retry_letter_topic="x", dead_letter_topic="x")},
            f"retry_letter_topic='x': expected {OTHER_TOPIC}",
        ),
        (
            {"dead_letter_policy": policy(retry_letter_topic=ORDERS)},
            f"retry_letter_topic={ORDERS!r}: expected {OTHER_TOPIC}",
        ),
        (
            {"dead_letter_policy": policy(dead_letter_topic="orders"), "topic": ["a", ORDERS]},
            "dead_letter_topic='orders': expected a topic that is not consumed here",
        ),
        (
            {"naming": "kafka"},
            (
                "naming='kafka': expected one of "
                "Naming.PULSAR, Naming.TDMQ_2_9_2, Naming.TDMQ_2_7_2, Naming.TDMQ_2_6_1"
            ),
        ),
        ({"delay_levels": ""}, f"delay_levels='': expected {LEVELS}"),
        ({"delay_levels": "1s 5x"}, f"delay_levels='1s 5x': expected {LEVELS}, not '5x'"),
        (
            {"negative_ack_redelivery_delay_ms": "60"},
            "negative_ack_redelivery_delay_ms='60': expected an int",
        ),
        (
            {"negative_ack_backoff": 10},
            "negative_ack_backoff=10: expected a backoff such as Exponential(10, 600)",
        ),
        ({"max_pending_letters": 0}, "max_pending_letters=0: expected a whole number, 1 or more"),
        (
            {"max_pending_letters": 1.5},
            "max_pending_letters=1.5: expected a whole number, 1 or more",
        ),
        (
            {"max_pending_letters": True},
            "max_pending_letters=True: expected a whole number, 1 or more",
        ),
        (
            {"crypto_key_reader": READER},
            (
                "letter_encryption_key=None: expected the name of the key that encrypts "
                "letters, because there is a crypto_key_reader; or plain_letters=True, with which "
                "letters are readable at the broker"
            ),
        ),
        (
            {"crypto_key_reader": READER, "letter_encryption_key": ""},
            "letter_encryption_key='': expected the name of a key, or None",
        ),
        (
            {"crypto_key_reader": READER, "letter_encryption_key": "k", "plain_letters": True},
            "plain_letters=True: expected False, because a letter_encryption_key is given",
        ),
        (
            {"letter_encryption_key": "k"},
            (
                "letter_encryption_key='k': expected None, unless there is a crypto_key_reader, "
                "and enable_retry or a dead_letter_policy"
            ),
        ),
        ({"plain_letters": 1}, "plain_letters=1: expected a bool"),
        ({"letter_send_timeout": 0}, "letter_send_timeout=0: expected more than 0 seconds"),
        (
            {"letter_send_timeout": -1},
            "letter_send_timeout=-1: expected seconds (a number) or a timedelta, 0 or more",
        ),
    ],
)
def test_bad_input_is_refused(plan_of: Callable[..., Plan], changes: dict, expected: str) -> None:
    """The error names the argument, its value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        plan_of(**changes)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({}, LetterTopics(f"{ORDERS}-billing-RETRY", f"{ORDERS}-billing-DLQ")),
        (
            {"retry_letter_topic": "again"},
            LetterTopics("persistent://public/default/again", f"{ORDERS}-billing-DLQ"),
        ),
        (
            {"retry_letter_topic": "a/b/again", "dead_letter_topic": "non-persistent://a/b/lost"},
            LetterTopics("persistent://a/b/again", "non-persistent://a/b/lost"),
        ),
    ],
)
def test_given_names_win_and_are_completed(
    plan_of: Callable[..., Plan], names: dict[str, str], expected: LetterTopics
) -> None:
    """Each of the two by itself; the other is derived."""
    assert expected == plan_of(dead_letter_policy=policy(**names)).topics


def test_without_retries_there_are_no_letter_topics(plan_of: Callable[..., Plan]) -> None:
    """A pattern, any topic type and a queue of 0 pass through unchecked, as to pulsar-client."""
    plan = plan_of(topic=PATTERN, enable_retry=False, receiver_queue_size=0)
    assert (PATTERN, None, None, None) == (plan.topic, plan.topics, plan.policy, plan.limit)


def test_without_a_policy_pulsar_client_checks_the_subscription(
    plan_of: Callable[..., Plan],
) -> None:
    """Its own error stays its own."""
    assert "" == plan_of(enable_retry=False, subscription="").subscription


@pytest.mark.parametrize("kind", pulsar.ConsumerType.__members__.values())
def test_redeliveries_are_limited_on_every_subscription(
    plan_of: Callable[..., Plan], kind: pulsar.ConsumerType
) -> None:
    """On Exclusive and Failover ones the broker counts none, and the consumer does."""
    assert 5 == plan_of(consumer_type=kind, dead_letter_policy=pr.DeadLetterPolicy(5)).limit


@pytest.mark.parametrize(
    ("milliseconds", "backoff", "expected"),
    [
        (60_000, None, pr.Fixed(60)),
        (0, None, pr.Fixed(0)),
        (-1, None, pr.Fixed(0)),
        (60_000, pr.Exponential(1, 2), pr.Exponential(1, 2)),
    ],
)
def test_a_backoff_wins_over_the_fixed_nack_delay(
    plan_of: Callable[..., Plan],
    milliseconds: int,
    backoff: pr.Backoff | None,
    expected: pr.Backoff,
) -> None:
    """pulsar-client's argument holds where there is no backoff."""
    plan = plan_of(negative_ack_redelivery_delay_ms=milliseconds, negative_ack_backoff=backoff)
    assert expected == plan.nack_backoff


def test_any_object_with_a_delay_is_a_backoff(plan_of: Callable[..., Plan]) -> None:
    """Backoff is a protocol: users bring their own."""

    class Linear:
        def delay(self, attempt: int) -> float:
            return float(attempt)

    linear = Linear()
    assert linear is plan_of(negative_ack_backoff=linear).nack_backoff


def test_the_send_timeout_may_be_a_timedelta(plan_of: Callable[..., Plan]) -> None:
    """It is kept in seconds."""
    assert 90.0 == plan_of(letter_send_timeout=timedelta(minutes=1.5)).letter_send_timeout


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"letter_encryption_key": "k"}, ("k", READER)),
        ({"plain_letters": True}, None),
        ({"enable_retry": False}, None),
        ({"enable_retry": False, "dead_letter_policy": pr.DeadLetterPolicy(3)}, pr.ConfigError),
        ({}, pr.ConfigError),
    ],
)
def test_letters_are_encrypted_or_somebody_has_said_that_they_are_not(
    plan_of: Callable[..., Plan], changes: dict, expected: Any
) -> None:
    """A consumer without letters says nothing about them."""
    if expected is pr.ConfigError:
        with pytest.raises(pr.ConfigError, match=r"letter_encryption_key=None: .*plain_letters"):
            plan_of(crypto_key_reader=READER, **changes)
    else:
        assert expected == plan_of(crypto_key_reader=READER, **changes).letter_encryption


def test_a_plan_is_hashable(plan_of: Callable[..., Plan]) -> None:
    """Spark's writers keep what they know of a subscription by its plan."""
    assert hash(plan_of()) == hash(plan_of())
