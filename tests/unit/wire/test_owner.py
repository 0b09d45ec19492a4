"""Whose letter a message is: what is believed of it, and to whom a redrive brings it back."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.wire.owner import Owner, Recipient, Stray, owner_of, retry_beside
from pulsar_retry.wire.properties import SYSTEM_PROPERTIES

ROOT = "persistent://public/default"
PAID, PAID_DLQ, RETRY = f"{ROOT}/paid", f"{ROOT}/paid-s2-DLQ", f"{ROOT}/paid-s2-RETRY"
SECOND = Recipient.of(["paid"], "s2", RETRY)

#: What the first stage's letter says, and what a copy of it says of the second stage.
COPIED = {
    "REAL_TOPIC": f"{ROOT}/orders",
    "REAL_SUBSCRIPTION": "s1",
    "RETRY_TOPIC": f"{ROOT}/orders-s1-RETRY",
    "ORIGIN_MESSAGE_ID": "1:2:-1",
    "ORIGIN_MESSAGE_IDY_TIME": "1:2:-1",
    "RECONSUMETIMES": "5",
    "DELAY_TIME": "1000",
    "FAILURE_ATTEMPT": "5",
    "FAILURE_PUBLISH_TIME": "2026-01-01T00:00:00Z",
    "FAILURE_STAMP": "7",
    "FAILURE_CRASHES": "2",
}
OWN = {"shop": "7", "DELAY": "mine", "FAILURE_REASON": "text"}
NAMES = {"REAL_TOPIC": PAID, "REAL_SUBSCRIPTION": "s2"}

#: Names of topics, subscriptions and partitions that are easily confused.
PARTS = st.text("ab-", min_size=1, max_size=5).filter(lambda each: each.strip("-"))
TOPICS = PARTS.map(lambda each: f"{ROOT}/{each}")


@pytest.mark.parametrize("topic", [PAID, f"{PAID}-partition-3", PAID_DLQ, f"{ROOT}/other"])
def test_what_was_copied_is_not_believed(topic: str) -> None:
    """The message begins anew, and keeps what is not a letter's."""
    assert OWN == SECOND.own({**COPIED, **OWN}, topic)


@pytest.mark.parametrize("topic", [RETRY, f"{RETRY}-partition-0"])
def test_what_comes_through_the_retry_topic_has_its_count(topic: str) -> None:
    """Whatever it says: another client's consumer copies names."""
    found = SECOND.own({**COPIED, **OWN}, topic)

    kept = COPIED.keys() - SYSTEM_PROPERTIES | {"RECONSUMETIMES", "DELAY_TIME"}
    assert {**OWN, **{name: COPIED[name] for name in kept}, "REAL_TOPIC": PAID} == found


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        (PAID, NAMES),
        (PAID, {"REAL_TOPIC": "paid"}),
        (PAID, {"REAL_SUBSCRIPTION": "s2"}),
        (PAID, {}),
        (f"{PAID}-partition-1", {"REAL_TOPIC": f"{PAID}-partition-2"}),
        (RETRY, {"REAL_TOPIC": f"{ROOT}/orders", "REAL_SUBSCRIPTION": "s2"}),
        (RETRY, {"REAL_TOPIC": f"{ROOT}/orders"}),
    ],
)
def test_its_own_letters_are_believed(topic: str, names: dict[str, str]) -> None:
    """As Java and Go write them, with any of the names or none; also in the main topic."""
    named = {"REAL_TOPIC", "REAL_SUBSCRIPTION"}
    properties = {name: text for name, text in COPIED.items() if name not in named} | names
    assert properties == SECOND.own(properties, topic)


@pytest.mark.parametrize("real", ["paid", "orders", "else"])
def test_a_list_has_the_names_of_any_of_its_topics(real: str) -> None:
    """A redrive of all of them may have one target."""
    recipient = Recipient.of(["paid", "orders"], "s2", RETRY)
    properties = {"REAL_TOPIC": f"{ROOT}/{real}", "RECONSUMETIMES": "1"}
    assert (real != "else") == bool(recipient.own(properties, PAID))


@pytest.mark.parametrize(("real", "kept"), [("paid", "paid"), ("else", "orders")])
def test_a_letter_of_a_list_keeps_the_name_of_one_of_its_topics(real: str, kept: str) -> None:
    """Also where another client has copied the subscription."""
    recipient = Recipient.of(["paid", "orders"], "s2", RETRY)
    properties = {**COPIED, "REAL_TOPIC": f"{ROOT}/{real}"}
    assert f"{ROOT}/{kept}" == recipient.own(properties, RETRY)["REAL_TOPIC"]


def test_a_pattern_believes_the_topic_it_comes_from() -> None:
    """It does not know its topics."""
    recipient = Recipient.of((), "s2", None)
    properties = {"REAL_TOPIC": PAID, "RECONSUMETIMES": "1"}
    assert properties == recipient.own(properties, f"{PAID}-partition-1")
    assert not recipient.own(properties, f"{ROOT}/orders")


@given(
    st.dictionaries(st.sampled_from([*COPIED, "shop"]), st.text("12ab", max_size=3)),
    st.sampled_from([PAID, PAID_DLQ, RETRY]),
)
def test_the_rule_holds_for_any_message(properties: dict[str, str], topic: str) -> None:
    """It takes away and adds nothing but a name, the message's own stays, and twice is once."""
    found = dict(SECOND.own(properties, topic))

    assert found == SECOND.own(found, topic)
    assert found.get("shop") == properties.get("shop")
    assert found.keys() - properties.keys() <= {"REAL_TOPIC"}
    assert found.get("REAL_SUBSCRIPTION", "s2") == "s2"
    if topic == RETRY:
        assert found.get("RECONSUMETIMES") == properties.get("RECONSUMETIMES")
    if topic == PAID_DLQ:
        assert not found.keys() - {"shop"}


@pytest.mark.parametrize(
    ("properties", "ours", "others"),
    [
        ({}, None, None),
        (NAMES, None, None),
        ({**NAMES, "REAL_SUBSCRIPTION": "s1"}, Stray.DROPPED, Stray.DELIVERED),
        ({**NAMES, "REAL_TOPIC": "orders"}, Stray.DELIVERED, Stray.DELIVERED),
        ({"REAL_TOPIC": "a/b/c/d/"}, None, None),
    ],
)
def test_letters_of_others_in_a_shared_retry_topic(properties, ours, others) -> None:
    """Only another subscription's has a cursor of its own, and only this package says whose."""
    found = [SECOND.stray(properties, is_ours=each) for each in (True, False)]
    assert [ours, others] == found


def owner(
    topic: str,
    properties: dict[str, str],
    *there: tuple[str, str],
    naming: pr.Naming = pr.Naming.PULSAR,
    given: tuple[str | None, str | None] = (None, None),
) -> tuple[str | None, str | None] | None:
    """Return the owner of a letter, where these topics have these subscriptions."""
    found = owner_of(
        f"{ROOT}/{topic}",
        Owner.named_by(properties),
        naming,
        given=Owner(given[0] and f"{ROOT}/{given[0]}", given[1]),
        exists=lambda name, subscription: (name.removeprefix(f"{ROOT}/"), subscription) in there,
    )
    return found and (str(found.topic).removeprefix(f"{ROOT}/"), found.subscription)


FIRST = {"REAL_TOPIC": f"{ROOT}/orders", "REAL_SUBSCRIPTION": "s1"}
BOTH = ("paid", "s2"), ("orders", "s1")


@pytest.mark.parametrize(
    ("topic", "properties", "there", "expected"),
    [
        ("paid-s2-DLQ", NAMES, (), ("paid", "s2")),
        ("paid-partition-3-s2-DLQ", NAMES, (), ("paid", "s2")),
        ("paid-s2-DLQ-partition-3", NAMES, (), ("paid", "s2")),
        ("paid-s2-RETRY", NAMES, (), ("paid", "s2")),
        ("s2-DLQ", NAMES, (), ("paid", "s2")),
        ("paid-s2-DLQ", FIRST, BOTH, ("paid", "s2")),  # copied
        ("paid-partition-0-s2-DLQ", FIRST, BOTH, ("paid", "s2")),
        ("paid-s2-DLQ", FIRST, (), None),
        ("paid-s2-DLQ", {}, BOTH, ("paid", "s2")),
        ("paid-s2-DLQ", {"REAL_TOPIC": f"{ROOT}/paid"}, BOTH, ("paid", "s2")),
        ("paid-s2-DLQ", {}, (("paid-s2", "x"),), None),
        ("a-b-c-DLQ", {}, (("a-b", "c"), ("a", "b-c")), None),
        ("a-b-c-DLQ", {}, (("a", "b-c"),), ("a", "b-c")),
        ("graveyard", NAMES, BOTH, None),
        ("graveyard", {"REAL_TOPIC": "a/b/c/d/e//"}, BOTH, None),
    ],
)
def test_whose_a_letter_is(topic, properties, there, expected) -> None:
    """It says so as its topic's name does, or the name has only one owner."""
    assert expected == owner(topic, properties, *there)


@pytest.mark.parametrize(
    ("topic", "properties", "given", "expected"),
    [
        ("paid-s2-DLQ", FIRST, (None, "s2"), ("paid", "s2")),
        ("paid-s2-DLQ", FIRST, ("paid", None), ("paid", "s2")),
        ("paid-s2-DLQ", FIRST, ("paid", "s2"), ("paid", "s2")),
        ("paid-s2-DLQ", NAMES, (None, "s1"), ("paid", "s2")),
        ("paid-s2-DLQ", FIRST, (None, "s1"), None),
        ("graveyard", NAMES, ("paid", "s2"), ("paid", "s2")),
        ("graveyard", {}, ("paid", "s2"), ("paid", "s2")),
        ("graveyard", FIRST, ("paid", "s2"), ("orders", "s1")),  # of another one there
        ("graveyard", NAMES, (None, "s2"), None),
    ],
)
def test_an_owner_can_be_given(topic, properties, given, expected) -> None:
    """Where neither says it; a letter that is certainly another's stays another's."""
    assert expected == owner(topic, properties, given=given)


@given(TOPICS, PARTS, st.sampled_from(pr.Naming), st.booleans(), TOPICS, PARTS)
def test_a_letter_that_names_its_owner_comes_back_to_it(
    topic: str, name: str, naming: pr.Naming, dead: bool, other: str, copied: str
) -> None:
    """Under each dialect; and names that were copied lead to nobody else."""
    names = naming.topics(topic, name)
    letters = names.dead_letter if dead else names.retry
    assume("/" in letters)
    own = Owner(topic, name)
    asked = {"given": Owner(), "exists": lambda *pair: pair == (topic, name)}
    assert own == owner_of(letters, own, naming, **asked)

    found = owner_of(letters, Owner(other, copied), naming, **asked)
    assert found in {own, None} or found.has(letters, naming) or naming is pr.Naming.PULSAR


def test_retry_topics_beside_partitions() -> None:
    """A partition's DLQ has the topic's retry topic, in the same letters."""
    assert f"{ROOT}/a-b-RETRY" == retry_beside(f"{ROOT}/a-b-DLQ-partition-2")
    assert f"{ROOT}/a-b-retry" == retry_beside(f"{ROOT}/a-b-dlq")
    assert retry_beside(f"{ROOT}/graveyard") is None


def test_a_letter_names_its_owner() -> None:
    """By full names; what it does not name is not known."""
    names = {"REAL_TOPIC": "a", "REAL_SUBSCRIPTION": "b", "RETRY_TOPIC": "c"}
    root = "persistent://public/default"
    assert Owner(f"{root}/a", "b", f"{root}/c") == Owner.named_by(names)
    assert Owner(None, None, None) == Owner.named_by({"REAL_SUBSCRIPTION": ""})
