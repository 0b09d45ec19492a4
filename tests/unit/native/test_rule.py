"""The rule of the usual retry letter in C++ is the one in Python."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.consumer.handoff.native_letters import NOT_KEPT
from pulsar_retry.letters.identity import gives_identity
from pulsar_retry.letters.letter import (
    DeadRequest,
    DelayRequest,
    FailedRetry,
    FailureDetails,
    reconsumed,
)
from pulsar_retry.letters.plan import Plan
from pulsar_retry.native.loading import native
from pulsar_retry.policy.actions import RETRIES_EXHAUSTED, RetryLater
from pulsar_retry.policy.backoff import Fixed
from pulsar_retry.policy.levels import DelayLevels
from pulsar_retry.wire.envelope import OWN_ROOM
from pulsar_retry.wire.names import LetterTopics, Naming, logical
from pulsar_retry.wire.properties import SYSTEM_PROPERTIES, Origin

pytestmark = pytest.mark.skipif(
    native().module is None,
    reason=f"skipped, because letters are handed off in Python: {native().why}",
)

TOPIC = "persistent://public/default/orders"
LETTERS = LetterTopics(f"{TOPIC}-billing-RETRY", f"{TOPIC}-billing-DLQ")
LEVELS = DelayLevels.parse("1s 5s 10s 30s 1m")
MOST = 16
OURS = "pulsar-retry-5f"


class Id(str):
    """A message id, in pulsar-client's text form."""

    __slots__ = ()

    def ledger_id(self):
        """Return the ledger."""
        return int(self[1:].partition(",")[0])


class Raw:
    """What is read of a raw message."""

    def __init__(self, topic, producer, message_id):
        self._values = topic, producer, message_id

    def topic_name(self):
        """Return the topic."""
        return self._values[0]

    def producer_name(self):
        """Return the producer."""
        return self._values[1]

    def message_id(self):
        """Return the id, as pulsar-client writes it."""
        return Id(f"({self._values[2].replace(':', ',')},-1)")


def plan_of(naming):
    """Return the plan of a subscription with retries."""
    return Plan(
        topic=TOPIC,
        subscription="billing",
        shared=True,
        policy=pr.DeadLetterPolicy(MOST),
        topics=LETTERS,
        naming=naming,
        levels=LEVELS,
        nack_backoff=Fixed(1),
        max_pending_letters=1,
        letter_send_timeout=1,
    )


counts = st.one_of(
    st.integers(0, 20).map(str),
    st.sampled_from(["", "007", "+1", "-1", "x", "99999999999", "2147483647", "\uff11"]),
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
names = st.sampled_from(
    [
        *("REAL_TOPIC", "REAL_SUBSCRIPTION", "RETRY_TOPIC", "DELAY_TIME", "DELAY"),
        *("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME", "user", "ä"),
    ]
)
ids = st.sampled_from(["1:2:-1", "1:2:3", "7:0:-1"])
carried_ones = st.builds(
    lambda more, origins, count: more | origins | count,
    st.dictionaries(names, texts, max_size=6),
    st.one_of(st.just({}), ids.map(lambda each: {"ORIGIN_MESSAGE_ID": each})),
    st.one_of(st.just({}), counts.map(lambda each: {"RECONSUMETIMES": each})),
)
requests = st.one_of(
    st.just(DelayRequest(None, None)),
    st.floats(0, 864_000).map(lambda delay: DelayRequest(delay, None)),
    st.integers(0, 40).map(lambda level: DelayRequest(None, level)),
)
topics = st.sampled_from(
    [TOPIC, f"{TOPIC}-partition-3", LETTERS.retry, "non-persistent://public/default/orders"]
)
producers = st.sampled_from(["standalone-0-1", OURS, ""])


@given(
    carried=carried_ones,
    request=requests,
    topic=topics,
    producer=producers,
    message_id=ids,
    naming=st.sampled_from(Naming),
)
@example({"ORIGIN_MESSAGE_ID": ""}, DelayRequest(1.0, None), TOPIC, OURS, "1:2:-1", Naming.PULSAR)
def test_both_make_the_same_letter(carried, request, topic, producer, message_id, naming):
    """Where C++ makes a letter, Python makes the same, with an identity, and to the retry topic."""
    plan = plan_of(naming)
    made = rule_of(naming, topic).retried(
        carried,
        topic,
        message_id,
        producer,
        -1.0 if request.delay is None else request.delay,
        -1 if request.level is None else request.level,
    )
    letter = reconsumed(plan, request, carried, Origin(topic, message_id, "billing"), None)
    named = gives_identity(Raw(topic, producer, message_id), letter.properties)
    usual = not letter.dead and named and is_plainly_own(carried, topic)
    if made is not None:
        assert usual
        assert (letter.properties, letter.delay) == made
    elif re.fullmatch("[0-9]{1,9}", carried.get("RECONSUMETIMES", "0")):
        assert not usual, "the usual letter should be made in C++"


def is_plainly_own(carried, topic):
    """Tell whether C++ believes what a message says; a main topic's letters are Python's."""
    if topic == LETTERS.retry:
        return carried.get("REAL_SUBSCRIPTION", "billing") == "billing"
    said = SYSTEM_PROPERTIES | {"FAILURE_STAMP", "FAILURE_CRASHES"}
    return topic.startswith("persistent:") and said.isdisjoint(carried)


def raised(size):
    """Return an error whose traceback has a little more than *size* bytes."""
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError("x" * size)
    return caught.value


failed_ones = st.builds(
    lambda carried, more: carried | more,
    carried_ones,
    st.dictionaries(
        st.sampled_from(["FAILURE_REASON", "FAILURE_STAMP", "FAILURE_NEW", *sorted(NOT_KEPT)]),
        texts,
        max_size=1,
    ),
)
moments = st.floats(0, 2e9).map(lambda each: datetime.fromtimestamp(each, UTC))
errors = st.one_of(
    st.none(),
    texts.map(ValueError),
    st.just(ValueError("\ud800")),
    st.integers(7000, 9000).map(raised),
)
failures = st.builds(FailureDetails, errors, st.integers(1, 99), moments, moments)
retries = st.builds(RetryLater, st.floats(0, 864_000), st.one_of(st.none(), st.integers(0, 40)))
#: Messages, the failures before their last one, and how the letters' topics are named.
messages = {
    "carried": failed_ones,
    "earlier": st.lists(failures, max_size=3),
    "topic": topics,
    "producer": producers,
    "message_id": ids,
    "naming": st.sampled_from(Naming),
}


def rule_of(naming, topic=TOPIC):
    """Return what the letters of messages from *topic* have in C++."""
    arguments = LETTERS.retry, "billing", MOST, LEVELS.delays, naming.is_tdmq, NOT_KEPT, OWN_ROOM
    rule = native().module.Rule(*arguments)
    rule.topic(topic, logical(topic))
    return rule


def is_foreign(carried):
    """Tell whether a message has properties that only Python removes."""
    ours = "FAILURE_STAMP"
    return any(
        each != ours and (each.startswith("FAILURE_") or each in NOT_KEPT) for each in carried
    )


def after(earlier, carried, origin, plan):
    """Return the properties of a message after *earlier* failures."""
    for each in earlier:
        request = FailedRetry.of(RetryLater(1.0), each, {}, 0.0)
        carried = request.letter(plan, carried, origin).properties
    return carried


@given(
    **messages,
    reason=texts,
    details=st.builds(
        FailureDetails,
        errors,
        st.integers(1, 99),
        moments,
        moments,
        redact=st.sampled_from([None, lambda _name, text: text.upper()]),
    ),
    is_used_up=st.booleans(),
)
def test_both_make_the_same_dead_letter(
    carried, earlier, topic, producer, message_id, naming, reason, details, is_used_up
):
    """Also of a letter that describes *earlier* failures, if this package has written it."""
    plan, origin = plan_of(naming), Origin(topic, message_id, "billing")
    usual = not is_foreign(carried) and (not earlier or producer == OURS)
    carried = after(earlier, carried, origin, plan)
    usual = usual and is_plainly_own(carried, topic)
    count = details.attempt if is_used_up else None
    request = DeadRequest.of(plan, RETRIES_EXHAUSTED if is_used_up else reason, details, count)
    made = rule_of(naming, topic).buried(
        carried,
        topic,
        message_id,
        producer,
        request.changes,
        request.failed,
        -1 if count is None else count,
    )
    letter = request.letter(plan, carried, origin)
    if made is None:
        is_cut = letter.properties.get("FAILURE_TRACEBACK", "").startswith("…")
        assert not usual or is_cut or (request.failed is None and earlier)
    else:
        assert (letter.properties, letter.topic) == (made, request.topic)
        facts = [
            (each.dead, each.delay, each.attempt, each.error, each.reason)
            for each in (letter, request)
        ]
        assert facts[0] == facts[1]


@given(
    **messages,
    action=retries,
    details=failures,
)
def test_both_make_the_same_retry_letter_of_a_failure(
    carried, earlier, topic, producer, message_id, naming, action, details
):
    """Also of a letter that describes *earlier* failures, if this package has written it."""
    plan, origin = plan_of(naming), Origin(topic, message_id, "billing")
    usual = not is_foreign(carried) and (not earlier or producer == OURS)
    carried = after(earlier, carried, origin, plan)
    usual = usual and is_plainly_own(carried, topic)
    request = FailedRetry.of(action, details, {"FAILURE_STAMP": "17"}, 0.5)
    made = rule_of(naming, topic).failed(
        carried,
        topic,
        message_id,
        producer,
        request.changes,
        request.failed,
        details.attempt,
        action.delay,
        request.level,
    )
    letter = request.letter(plan, carried, origin)
    named = gives_identity(Raw(topic, producer, message_id), letter.properties)
    if made is not None:
        assert named
        assert letter.properties == made
        assert (LETTERS.retry, max(0.5, action.delay)) == (letter.topic, letter.delay)
    else:
        assert not (usual and named), "the letter should be made in C++"


def failed_often(times):
    """Return the properties of a letter after many failures, and a failure more."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    details = FailureDetails(ValueError("x"), 1, moment, moment)
    carried = after(
        [details] * times, {}, Origin(TOPIC, "1:2:-1", "billing"), plan_of(Naming.PULSAR)
    )
    return carried, FailedRetry.of(RetryLater(1.0), details, {}, 0.0)


@pytest.mark.parametrize(("times", "is_made"), [(10, True), (40, False)])
def test_a_long_history(times, is_made):
    """Python cuts it, if it is too long."""
    carried, request = failed_often(times)
    rule = rule_of(Naming.PULSAR)
    changes = request.changes, request.failed, 1, 1.0, -1
    made = rule.failed(carried, LETTERS.retry, "7:0:-1", OURS, *changes)
    assert (made is not None) == is_made


@pytest.mark.parametrize(
    "other",
    [
        {"FAILURE_HISTORY": "[]"},
        {"FAILURE_HISTORY": "[[1]"},
        {"FAILURE_PUBLISH_TIME": "1767225600000"},
        {"FAILURE_PUBLISH_TIME": ""},
        {"FAILURE_REASON": "too-old"},
        {"FAILURE_CRASHES": "1"},
    ],
)
def test_what_only_python_reads(other):
    """A letter that does not describe its failures as this package does."""
    carried, request = failed_often(2)
    rule = rule_of(Naming.PULSAR)
    changes = request.changes, request.failed, 1, 1.0, -1
    assert rule.failed(carried, LETTERS.retry, "7:0:-1", OURS, *changes) is not None
    assert rule.failed(carried | other, LETTERS.retry, "7:0:-1", OURS, *changes) is None
    assert rule.failed(carried, LETTERS.retry, "7:0:-1", "standalone-0-1", *changes) is None


def test_python_describes_what_is_redacted():
    """C++ makes no letter of a failure that has to be redacted first."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    details = FailureDetails(ValueError("x"), 1, moment, moment, redact=lambda _name, text: text)
    assert FailedRetry.of(RetryLater(1.0), details, {}, 0.0) is None


def is_text(data):
    """Tell whether Python reads *data* as UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


pieces = st.one_of(
    st.binary(max_size=4),
    st.text(max_size=2).map(lambda each: each.encode(errors="surrogatepass")),
    st.sampled_from(
        [b"\xc0\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x90"]
    ),
)


@given(st.lists(pieces, max_size=4).map(b"".join))
def test_text(data):
    """Properties that Python cannot read are left to it."""
    assert is_text(data) is native().module.is_text(data)


def test_large_properties():
    """Python makes them: they may be too large for a message."""
    rule = rule_of(Naming.PULSAR)
    arguments = (TOPIC, "1:2:-1", "standalone-0-1", 1.0, -1)
    assert rule.retried({"user": "x" * 1000}, *arguments)
    assert rule.retried({"user": "x" * (64 << 10)}, *arguments) is None


def test_an_unknown_topic():
    """Which topic a partition belongs to, Python has to say once."""
    rule = rule_of(Naming.PULSAR)
    arguments = ({}, f"{TOPIC}-partition-0", "1:2:0", "standalone-0-1", 1.0, -1)
    assert rule.retried(*arguments) is None
    rule.topic(f"{TOPIC}-partition-0", TOPIC)
    assert TOPIC == rule.retried(*arguments)[0]["REAL_TOPIC"]
