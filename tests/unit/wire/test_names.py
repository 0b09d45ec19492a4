"""Topic names, and the names that retry and dead-letter topics get in each dialect."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.letters.plan import Plan
from pulsar_retry.wire.names import LetterTopics, TopicName, logical

PARTS = st.text("abcXYZ019-_.=:", min_size=1, max_size=12)
#: Local names that look like a partition's in the middle, where nothing may be cut.
LOCALS = PARTS | st.builds("{}-partition-{}-{}".format, PARTS, st.integers(0, 99), PARTS)
DOMAINS = st.sampled_from(["persistent", "non-persistent"])
FULL_NAMES = st.builds(TopicName, DOMAINS, PARTS, PARTS, LOCALS)


@given(FULL_NAMES)
def test_a_full_name_reads_back_as_it_prints(name: TopicName) -> None:
    """Parsing and printing a full name are inverse."""
    assert name == TopicName.parse(str(name))


@given(LOCALS)
def test_a_short_name_is_in_the_default_namespace(local: str) -> None:
    """`t` is persistent://public/default/t."""
    assert TopicName("persistent", "public", "default", local) == TopicName.parse(local)


@given(PARTS, PARTS, LOCALS)
def test_a_name_without_domain_is_persistent(tenant: str, namespace: str, local: str) -> None:
    """`tenant/namespace/t` is persistent://tenant/namespace/t."""
    expected = TopicName("persistent", tenant, namespace, local)
    assert expected == TopicName.parse(f"{tenant}/{namespace}/{local}")


@given(FULL_NAMES)
def test_a_sibling_is_in_the_same_namespace(name: TopicName) -> None:
    """A sibling differs in its local name alone."""
    assert TopicName(name.domain, name.tenant, name.namespace, "other") == TopicName.parse(
        name.sibling("other")
    )


@pytest.mark.parametrize(
    "topic",
    [
        "",
        " \t",
        "a/b",
        "a//c",
        "/a/b/c",
        "a/b/c/d",
        "persistent://a/b",
        "persistent://a/b/",
        "persistent:///b/c",
        "kafka://a/b/c",
        None,
        7,
        b"orders",
    ],
)
def test_what_is_no_topic_is_refused(topic: object) -> None:
    """The error names the argument that was given, its value and the three forms."""
    expected = (
        f"retry_letter_topic={topic!r}: "
        "expected a topic: t, tenant/namespace/t or persistent://tenant/namespace/t"
    )
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        TopicName.parse(topic, "retry_letter_topic")  # type: ignore[arg-type]


@given(LOCALS.filter(lambda local: logical(local) == local), st.integers(0, 10_000))
def test_the_logical_name_lacks_the_partition(local: str, partition: int) -> None:
    """Exactly one trailing `-partition-<n>` is cut; one in the middle stays."""
    assert local == logical(f"{local}-partition-{partition}")


@pytest.mark.parametrize(
    "topic",
    [
        "orders",
        "orders-partition-",
        "orders-partition-x",
        "orders-partition-1x",
        "orders-partition-1\n",
        "orders-partition-3-billing",
        "orders-partition-\N{ARABIC-INDIC DIGIT THREE}",
    ],
)
def test_a_logical_name_stays_as_it_is(topic: str) -> None:
    """What is not a partition's name is not cut."""
    assert topic == logical(topic)


@given(FULL_NAMES, PARTS)
def test_pulsar_and_tdmq_2_9_2_put_the_topic_in_front(name: TopicName, subscription: str) -> None:
    """`<topic>-<subscription>-RETRY` and `-DLQ`, with all of the topic's name."""
    expected = LetterTopics(f"{name}-{subscription}-RETRY", f"{name}-{subscription}-DLQ")
    assert expected == pr.Naming.PULSAR.topics(str(name), subscription)
    assert expected == pr.Naming.TDMQ_2_9_2.topics(str(name), subscription)


@given(FULL_NAMES, PARTS)
def test_older_tdmq_names_know_the_subscription_alone(name: TopicName, subscription: str) -> None:
    """`<subscription>-RETRY` in upper case up to 2.7.2, in lower case in 2.6.1."""
    base = f"{name.domain}://{name.tenant}/{name.namespace}/{subscription}"
    assert LetterTopics(f"{base}-RETRY", f"{base}-DLQ") == pr.Naming.TDMQ_2_7_2.topics(
        str(name), subscription
    )
    assert LetterTopics(f"{base}-retry", f"{base}-dlq") == pr.Naming.TDMQ_2_6_1.topics(
        str(name), subscription
    )


@given(st.sampled_from(pr.Naming), LOCALS, PARTS)
def test_short_and_full_names_have_the_same_letters(
    naming: pr.Naming, local: str, subscription: str
) -> None:
    """However a topic is written, its letters' topics are named in full and alike."""
    full = naming.topics(f"persistent://public/default/{local}", subscription)
    assert full == naming.topics(local, subscription)
    assert full == naming.topics(f"public/default/{local}", subscription)


@pytest.mark.parametrize(
    ("topics", "first"),
    [
        (["b", "a", "c"], "a"),
        (["orders", "Orders"], "Orders"),
        (["z", "persistent://public/default/a"], "persistent://public/default/a"),
        (["b", "persistent://public/default/a"], "b"),
        (["t10", "t2"], "t10"),
    ],
)
def test_default_names_come_from_the_smallest_topic_as_typed(
    plan_of: Callable[..., Plan], topics: list[str], first: str
) -> None:
    """Strings are compared as typed, not as full names: Java's TreeSet does so."""
    assert pr.Naming.PULSAR.topics(first, "billing") == plan_of(topic=topics).topics


@given(st.lists(LOCALS, min_size=1), st.randoms(use_true_random=False))
def test_the_order_in_which_topics_are_given_does_not_matter(
    plan_of: Callable[..., Plan], topics: list[str], random: Random
) -> None:
    """Two consumers that list the same topics differently share their letters."""
    shuffled = list(topics)
    random.shuffle(shuffled)
    assert plan_of(topic=topics).topics == plan_of(topic=shuffled).topics


@pytest.mark.parametrize("dialect", pr.Naming)
def test_a_dialect_can_be_given_by_value(dialect: pr.Naming) -> None:
    """The member and its value are the same dialect."""
    assert [dialect] * 2 == [pr.Naming.of(dialect), pr.Naming.of(dialect.value)]


@pytest.mark.parametrize("naming", ["rocketmq", "", "Pulsar", None, 3, []])
def test_an_unknown_dialect_is_refused(naming: object) -> None:
    """The error lists the dialects that there are."""
    known = "Naming.PULSAR, Naming.TDMQ_2_9_2, Naming.TDMQ_2_7_2, Naming.TDMQ_2_6_1"
    expected = f"naming={naming!r}: expected one of {known}"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.Naming.of(naming)  # type: ignore[arg-type]


def test_the_three_tdmq_dialects_say_so() -> None:
    """Only these write DELAY."""
    assert [False, True, True, True] == [dialect.is_tdmq for dialect in pr.Naming]
