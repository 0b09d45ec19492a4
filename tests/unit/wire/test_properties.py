"""The properties of letters: what is written, and what is read of every client's letters."""

from __future__ import annotations

import logging
import re
from decimal import Decimal

import attrs
import pulsar
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.wire import properties as wire
from pulsar_retry.wire.properties import (
    SYSTEM_PROPERTIES,
    Origin,
    checked_custom,
    counts,
    dead_letter_properties,
    letter_properties,
    message_id_text,
    reconsume_times,
)

ORIGIN = Origin("persistent://shop/eu/orders-partition-3", "12:34:3:5", "billing")
RETRY_TOPIC = "persistent://shop/eu/orders-billing-RETRY"

#: Java's count is an int.
COUNTS = st.integers(0, 2**31 - 1)
TEXT = st.text(max_size=20)
CUSTOM = st.dictionaries(TEXT.filter(lambda name: name not in SYSTEM_PROPERTIES), TEXT, max_size=5)
#: What a message may carry: anything, and some of the system's properties with any values.
CARRIED = st.builds(
    lambda own, system: own | system,
    CUSTOM,
    st.dictionaries(st.sampled_from(sorted(SYSTEM_PROPERTIES)), TEXT, max_size=7),
)
GARBAGE = TEXT.filter(lambda text: not re.fullmatch(r"\+?[0-9]{1,10}", text, re.ASCII))


@attrs.frozen
class FakeMessage:
    """A message as far as its properties are concerned."""

    carried: dict[str, str]
    redeliveries: int = 0

    def properties(self) -> dict[str, str]:
        """Return the properties."""
        return self.carried

    def redelivery_count(self) -> int:
        """Return how often the broker redelivered it."""
        return self.redeliveries


@pytest.fixture
def garbage_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a process that has not logged a bad count yet."""
    monkeypatch.setattr(wire, "_garbage_seen", False)


def first_letter(**changes: object) -> dict[str, str]:
    """Return the properties of the first letter of a message that carries `colour`."""
    arguments = {"count": 1, "delay": 10.0, "retry_topic": RETRY_TOPIC} | changes
    return letter_properties({"colour": "red"}, ORIGIN, **arguments)  # type: ignore[arg-type]


# -- what is written ------------------------------------------------------------------------------


def test_a_first_letter_carries_these_in_this_order() -> None:
    """The message's own, the origin's, the caller's, and last the count and the delay in ms."""
    assert [
        ("colour", "red"),
        ("REAL_TOPIC", "persistent://shop/eu/orders"),
        ("ORIGIN_MESSAGE_IDY_TIME", "12:34:3:5"),
        ("ORIGIN_MESSAGE_ID", "12:34:3:5"),
        ("REAL_SUBSCRIPTION", "billing"),
        ("RETRY_TOPIC", RETRY_TOPIC),
        ("why", "no stock"),
        ("RECONSUMETIMES", "1"),
        ("DELAY_TIME", "10000"),
    ] == list(first_letter(custom={"why": "no stock"}).items())


def test_tdmq_letters_also_carry_the_bare_level() -> None:
    """DELAY is the level, never scaled by a unit."""
    assert first_letter() | {"DELAY": "3"} == first_letter(level=3)


def test_a_dead_letter_names_no_retry_topic() -> None:
    """It differs from a retry letter in that alone."""
    expected = first_letter()
    del expected["RETRY_TOPIC"]
    assert expected == first_letter(retry_topic=None)


@given(CARRIED, CUSTOM, COUNTS)
def test_originals_are_kept(carried: dict[str, str], custom: dict[str, str], count: int) -> None:
    """Everything a message carries is in its letter, but for the count, the delay and overrides.

    That includes where it first came from: a second hop does not change its history.
    """
    letter = letter_properties(
        carried, ORIGIN, count=count, delay=0, retry_topic=RETRY_TOPIC, custom=custom
    )
    changed = {"RECONSUMETIMES", "DELAY_TIME", *custom}
    originals = {
        name: value
        for name, value in carried.items()
        if name not in changed and not name.startswith("ORIGIN_")
    }
    assert originals == {name: letter[name] for name in originals}
    assert custom == {name: letter[name] for name in custom}
    assert (str(count), "0") == (letter["RECONSUMETIMES"], letter["DELAY_TIME"])


@given(CARRIED)
def test_what_a_message_carries_is_not_changed_in_place(carried: dict[str, str]) -> None:
    """The caller's mapping stays as it was."""
    before = dict(carried)
    letter_properties(carried, ORIGIN, count=1, delay=1, retry_topic=RETRY_TOPIC)
    dead_letter_properties(carried, ORIGIN, custom={"a": "b"})
    assert before == carried


@pytest.mark.parametrize(
    ("carried", "expected"),
    [
        ({}, ("12:34:3:5", "12:34:3:5")),
        ({"ORIGIN_MESSAGE_ID": "1:2:3"}, ("1:2:3", "1:2:3")),
        ({"ORIGIN_MESSAGE_IDY_TIME": "1:2:3"}, ("1:2:3", "1:2:3")),
        (
            {"ORIGIN_MESSAGE_ID": "1:2:3", "ORIGIN_MESSAGE_IDY_TIME": "4:5:6"},
            ("1:2:3", "4:5:6"),
        ),
    ],
)
def test_both_origin_keys_are_written(carried: dict[str, str], expected: tuple[str, str]) -> None:
    """A key that is missing gets the value of its twin; keys that are there stay."""
    retry = letter_properties(carried, ORIGIN, count=2, delay=0, retry_topic=RETRY_TOPIC)
    dead = dead_letter_properties(carried, ORIGIN)
    for letter in (retry, dead):
        assert expected == (letter["ORIGIN_MESSAGE_ID"], letter["ORIGIN_MESSAGE_IDY_TIME"])


@given(st.integers(0, 864_000_000))
def test_delays_are_exact_to_the_millisecond(milliseconds: int) -> None:
    """Float seconds do not lose a millisecond on the way to the wire and back."""
    letter = first_letter(delay=milliseconds / 1000)
    assert str(milliseconds) == letter["DELAY_TIME"]
    assert milliseconds / 1000 == pr.RetryProperties.read(letter).delay


@given(st.sampled_from(sorted(SYSTEM_PROPERTIES)), CARRIED, TEXT)
def test_a_caller_cannot_change_a_system_property(
    name: str, carried: dict[str, str], value: str
) -> None:
    """Only the value that the message has already is accepted for one of the system's names."""
    if carried.get(name) == value:
        checked_custom({name: value}, carried)
    else:
        accepted = f"names other than {name}, which the system uses"
        expected = f"properties={ {name: value}!r}: expected {accepted}"
        with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
            checked_custom({name: value}, carried)


def test_a_caller_who_repeats_the_count_does_not_stop_it() -> None:
    """Passing a message's own properties along is allowed and changes nothing."""
    carried = {"RECONSUMETIMES": "1", "DELAY_TIME": "5000"}
    checked_custom(carried, carried)
    letter = letter_properties(
        carried, ORIGIN, count=2, delay=1, retry_topic=RETRY_TOPIC, custom=carried
    )
    assert ("2", "1000") == (letter["RECONSUMETIMES"], letter["DELAY_TIME"])


@pytest.mark.parametrize("custom", [{"why": 5}, {"why": None}, {5: "why"}, {"why": b"bytes"}])
def test_properties_are_str_to_str(custom: dict) -> None:
    """Whatever else is refused before anything is sent."""
    expected = f"properties={custom!r}: expected str names with str values"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        checked_custom(custom, {})


@pytest.mark.parametrize("custom", [{"why": "\ud800"}, {"\ud800": "why"}])
def test_properties_are_encodable(custom: dict[str, str]) -> None:
    """A lone surrogate would fail in pulsar-client, after the producer was opened."""
    expected = f"properties={custom!r}: expected text without lone surrogates"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        checked_custom(custom, {})


@pytest.mark.parametrize("custom", [["why"], [], "why", "", 5, 0, [("a", "b")]])
def test_properties_are_a_mapping(custom: object) -> None:
    """Whatever else is refused before anything is sent, empty or not."""
    expected = f"properties={custom!r}: expected a mapping of str names to str values"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        checked_custom(custom, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("custom", [None, {}])
def test_no_properties_are_fine(custom: dict | None) -> None:
    """Neither none nor an empty mapping adds anything."""
    checked_custom(custom, {})
    assert first_letter() == first_letter(custom=custom)


def test_the_nack_paths_dead_letter_has_no_count() -> None:
    """As in Java: where it came from, and neither a count nor a delay of ours."""
    assert {
        "REAL_TOPIC": "persistent://shop/eu/orders",
        "ORIGIN_MESSAGE_IDY_TIME": "12:34:3:5",
        "ORIGIN_MESSAGE_ID": "12:34:3:5",
        "REAL_SUBSCRIPTION": "billing",
    } == dead_letter_properties({}, ORIGIN)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((-1, 12, 34, -1), "12:34:-1"), ((3, 12, 34, -1), "12:34:3"), ((3, 12, 34, 0), "12:34:3:0")],
)
def test_message_ids_are_printed_as_java_does(arguments: tuple[int, ...], expected: str) -> None:
    """`ledger:entry:partition`, and the place in the batch where there is one."""
    assert expected == message_id_text(pulsar.MessageId(*arguments))


# -- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("carried", "expected"),
    [
        pytest.param(
            {},
            pr.RetryProperties(0, None, None, None, None, None),
            id="never retried",
        ),
        pytest.param(
            {
                "REAL_TOPIC": "persistent://public/default/orders",
                "ORIGIN_MESSAGE_IDY_TIME": "12:34:-1",
                "ORIGIN_MESSAGE_ID": "12:34:-1",
                "REAL_SUBSCRIPTION": "billing",
                "RECONSUMETIMES": "2",
                "DELAY_TIME": "10000",
            },
            pr.RetryProperties(
                2, 10.0, "persistent://public/default/orders", "billing", "12:34:-1", None
            ),
            id="Java",
        ),
        pytest.param(
            {
                "REAL_TOPIC": "persistent://public/default/orders",
                "ORIGIN_MESSAGE_IDY_TIME": "12033:201:0",
                "ORIGIN_MESSAGE_ID": "12033:201:0",
                "RECONSUMETIMES": "1",
                "DELAY_TIME": "1000",
            },
            pr.RetryProperties(
                1, 1.0, "persistent://public/default/orders", None, "12033:201:0", None
            ),
            id="Go",
        ),
        pytest.param(
            {
                "REAL_TOPIC": "persistent://public/default/orders",
                "RETRY_TOPIC": "persistent://public/default/billing-retry",
                "ORIGIN_MESSAGE_ID": "{12 34 0 0}",
                "producer_name": "standalone-1-2",
                "RECONSUMETIMES": "3",
                "DELAY_TIME": "10000",
                "DELAY": "3",
            },
            pr.RetryProperties(
                3,
                10.0,
                "persistent://public/default/orders",
                None,
                "{12 34 0 0}",
                "persistent://public/default/billing-retry",
            ),
            id="TDMQ",
        ),
        pytest.param(
            {
                "REAL_TOPIC": "persistent://public/default/orders",
                "ORIGIN_MESSAGE_IDY_TIME": "12,34,-1",
                "RECONSUMETIMES": "1",
                "DELIVER_AT": "1763729675000",
            },
            pr.RetryProperties(
                1, None, "persistent://public/default/orders", None, "12,34,-1", None
            ),
            id="F#",
        ),
        pytest.param(
            {
                "REAL_TOPIC": "persistent://public/default/orders",
                "ORIGIN_MESSAGE_ID": "(12,34,-1,-1)",
            },
            pr.RetryProperties(
                0, None, "persistent://public/default/orders", None, "12:34:-1", None
            ),
            id="C++",
        ),
    ],
)
def test_every_clients_letters_are_read(
    carried: dict[str, str], expected: pr.RetryProperties
) -> None:
    """Either origin key, any id syntax, with and without the younger properties."""
    message = FakeMessage(carried)
    assert expected == pr.RetryProperties.of(message)
    assert 1 + expected.reconsume_times == pr.attempt_of(message)


@example(count=0, plus=False, zeros=True)
@example(count=7, plus=True, zeros=False)
@given(count=COUNTS, plus=st.booleans(), zeros=st.booleans())
def test_a_count_is_any_int_that_java_parses(count: int, plus: bool, zeros: bool) -> None:
    """A sign and leading zeros are read, as by Integer.parseInt."""
    text = f"{'+' * plus}{count:0{10 * zeros}d}"
    assert count == reconsume_times({"RECONSUMETIMES": text})


@given(COUNTS, st.integers(0, 1000))
def test_an_attempt_counts_letters_and_redeliveries(count: int, redeliveries: int) -> None:
    """1 for the first delivery, one more for each way back."""
    message = FakeMessage({"RECONSUMETIMES": str(count)}, redeliveries)
    assert 1 + count + redeliveries == pr.attempt_of(message)


def test_a_level_is_written_where_there_is_one() -> None:
    """Spark's rows have none but in TDMQ's dialects."""
    usual = {"RECONSUMETIMES": "2", "DELAY_TIME": "5000"}
    assert [usual, {**usual, "DELAY": "3"}] == [counts(2, 5, level) for level in (None, 3)]


@given(st.integers(2**31 - 1, 2**31 + 5) | st.integers(2**31, 10**5000), st.integers(0, 3))
def test_a_count_too_large_for_java_is_the_largest(count: int, zeros: int) -> None:
    """Read as 0 it would begin anew, and Java could not read what is larger."""
    digits = "0" * zeros + str(Decimal(count))
    assert 2**31 - 1 == reconsume_times({"RECONSUMETIMES": digits})
    assert 2**31 - 1 == reconsume_times({"RECONSUMETIMES": f"+{digits}"})
    assert str(2**31 - 1) == counts(count, 0, None)["RECONSUMETIMES"]


@pytest.mark.usefixtures("garbage_unseen")
@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1\n",
        "-1",
        "1.0",
        "1_0",
        "0x1",
        "one",
        "+",
        "\N{ARABIC-INDIC DIGIT THREE}",
    ],
)
def test_a_garbage_count_is_zero_and_logged(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """One warning with the beginning of the value, and no error."""
    assert 0 == reconsume_times({"RECONSUMETIMES": text})
    [record] = caplog.records
    assert ("pulsar_retry", logging.WARNING) == (record.name, record.levelno)
    assert record.getMessage().startswith(f"RECONSUMETIMES={text!r:.40}")


@pytest.mark.usefixtures("garbage_unseen")
def test_garbage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A poisoned topic does not flood the log; counts are not logged at all."""
    for properties in ({}, {"RECONSUMETIMES": "1"}):
        reconsume_times(properties)
    assert not caplog.records
    for text in ("one", "two", "three"):
        reconsume_times({"RECONSUMETIMES": text})
    assert 1 == len(caplog.records)


@given(GARBAGE)
def test_garbage_is_never_an_error(text: str) -> None:
    """Whatever a producer wrote, the message can be read and handed on."""
    properties = dict.fromkeys((*SYSTEM_PROPERTIES, "DELAY"), text)
    assert 0 == pr.RetryProperties.read(properties).reconsume_times


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1000",
        "1.5",
        "soon",
        "1000\n",
        "\N{SUPERSCRIPT TWO}",
        "9223372036854775808",
        "9" * 400,
        "9" * 5000,
    ],
)
def test_a_garbage_delay_is_none(text: str) -> None:
    """TDMQ's Go client writes negative ones; Java's are longs."""
    assert pr.RetryProperties.read({"DELAY_TIME": text}).delay is None


def test_the_longest_delay_is_javas() -> None:
    """Any long can be read."""
    longest = {"DELAY_TIME": "9223372036854775807"}
    assert (2**63 - 1) / 1000 == pr.RetryProperties.read(longest).delay


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("(25,0,-1,-1)", "25:0:-1"),
        ("(8,1,0,3)", "8:1:0:3"),
        ("(3654,0,1,-1);(3654,1,1,-1)", "3654:0:1;3654:1:1"),
    ],
    ids=["plain", "in a batch", "chunked"],
)
def test_a_message_id_reads_as_javas(printed: str, expected: str) -> None:
    """pulsar-client's notation becomes the Java client's."""

    class Id:
        def __str__(self) -> str:
            return printed

    assert expected == message_id_text(Id())


@pytest.mark.parametrize("message", [b"x", "x", None, 7])
def test_what_is_no_message(message: object) -> None:
    """The error says what is expected."""
    for read in (pr.attempt_of, pr.RetryProperties.of):
        with pytest.raises(pr.ConfigError, match="a message as it was received"):
            read(message)  # type: ignore[arg-type]  # which is what is tested
