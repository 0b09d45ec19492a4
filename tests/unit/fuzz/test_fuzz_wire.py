"""Whatever other clients, and whoever else, wrote on a message: reading it never raises."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.wire import properties as names
from pulsar_retry.wire.dead_letter import dedupe_id, next_redrive
from pulsar_retry.wire.envelope import READ
from pulsar_retry.wire.names import TopicName
from pulsar_retry.wire.owner import Owner, owner_of
from support.fuzzing import REFUSED, taken

#: Texts that look like what is expected, nearly: numbers, times, JSON, topics, levels.
NEARLY = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=5,
    ).map(json.dumps),
    st.from_regex(r"(non-)?persistent://?[a-z]*/[a-z]*/?[a-z-]*(-DLQ|-RETRY)?", fullmatch=True),
    st.from_regex(r"[0-9]*:[0-9]*:-?[0-9]*(:[0-9]*)?", fullmatch=True),
    st.sampled_from(["\u0663", "1_000", " 7 ", "+1", "1e5", "9" * 5000, "-0", "", "\x00"]),
)
PROPERTIES = st.dictionaries(
    st.sampled_from(sorted(READ | names.SYSTEM_PROPERTIES)) | st.text(max_size=8),
    NEARLY | st.text(max_size=40),
    max_size=12,
)
#: Names that have to be taken.
USUAL = re.compile(r"(non-)?persistent://[a-z]+/[a-z]+/[a-z]+")
TOPICS = (
    st.from_regex(USUAL, fullmatch=True)
    | st.from_regex(r"[a-z]+://[a-z]+/[a-z]+/[a-z-]+", fullmatch=True)
    | st.text()
    | NEARLY
)


def message(properties: dict[str, str], count: int) -> SimpleNamespace:
    """Return what is read of a message."""
    return SimpleNamespace(properties=lambda: properties, redelivery_count=lambda: count)


@given(PROPERTIES, st.integers(0, 2**31))
def test_properties_of_any_kind_are_read(properties, count) -> None:
    """Counts are never negative, delays are seconds or nothing."""
    read = pr.RetryProperties.read(properties)

    assert read.reconsume_times >= 0
    assert read.delay is None or read.delay >= 0
    assert pr.attempt_of(message(properties, count)) >= 1 + count


@example("0-DLQ", {}, pr.Naming.PULSAR, 0)
@example("/0-0-DLQ", {}, pr.Naming.PULSAR, 0)
@given(TOPICS, PROPERTIES, st.sampled_from(pr.Naming), st.integers(0, 100))
def test_any_letter_can_be_asked_where_it_belongs(topic, properties, naming, maximum) -> None:
    """A redrive survives every letter, and a topic's name that is not a full one."""
    named = Owner.named_by(properties)
    owner = owner_of(topic, named, naming, given=Owner(), exists=lambda *_: True)
    count = next_redrive(properties, maximum)

    assert owner is None or str(owner.topic).count("/") >= 4
    assert count is None or 1 <= count <= maximum
    assert dedupe_id(properties, topic, count or 1)


@example("0\n")
@given(TOPICS | st.none() | st.integers() | st.binary(max_size=8))
def test_a_topic_is_read_or_refused(topic) -> None:
    """A name has four parts, and is read again as the same; or there is a clear error."""
    name = taken(TopicName.parse, topic, says="topic")
    assert name is REFUSED or name == TopicName.parse(str(name))
    if isinstance(topic, str) and USUAL.fullmatch(topic):
        assert topic == str(name)


@given(TOPICS, st.from_regex("[a-z]+", fullmatch=True) | st.text(), st.sampled_from(pr.Naming))
def test_letters_topics_have_names_or_there_is_a_clear_error(topic, subscription, naming) -> None:
    """The two never share one."""
    topics = taken(naming.topics, topic, subscription)
    assert topics is REFUSED or topics.retry != topics.dead_letter
    if USUAL.fullmatch(topic) and topic.startswith("p") and re.fullmatch("[a-z]+", subscription):
        assert topics is not REFUSED


@given(
    st.dictionaries(st.text(max_size=8) | st.integers(), st.text(max_size=8) | st.none()),
    PROPERTIES,
)
def test_custom_properties_are_taken_or_refused(custom, carried) -> None:
    """A caller's properties never get as far as pulsar-client when they are none."""
    are_texts = all(isinstance(each, str) for pair in custom.items() for each in pair)
    is_taken = taken(names.checked_custom, custom, carried) is not REFUSED
    assert are_texts or not is_taken
    assert is_taken or not are_texts or custom.keys() & names.SYSTEM_PROPERTIES


@given(st.integers(), st.timedeltas(timedelta(0)), st.none() | st.integers())
def test_counts_are_written_so_that_they_are_read(count, delay, level) -> None:
    """What a letter says of its count and delay is what was meant."""
    count = abs(count) % 2**31
    written = names.counts(count, delay.total_seconds(), level)

    assert count == pr.RetryProperties.read(written).reconsume_times
