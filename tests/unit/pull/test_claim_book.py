"""The claims of a cluster, as their topic says them; without a broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.rules.claims import ClaimBook, Record
from pulsar_retry.pull.rules.quarantine import CrashLoop

MESSAGES = tuple(f"persistent://public/default/orders 1:{number}:0" for number in range(4))


def record(process: str, hand: tuple[str, ...], alone: str | None = None) -> Record:
    """Return a record."""
    return Record.of(process, hand, at=7.0, host="worker-1", pid=12, alone=alone)


records = st.builds(
    record,
    st.sampled_from(["a", "b", "me"]),
    st.lists(st.sampled_from(MESSAGES), unique=True).map(tuple),
)
marks = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(MESSAGES))


@given(st.lists(st.one_of(records, marks, st.sampled_from(["a", "b"])), max_size=20))
def test_who_accuses(steps: list[Record | tuple[str, str] | str]) -> None:
    """The last record of each other process, without what is settled, is what counts."""
    book, hands, settled = ClaimBook("me"), dict[str, set[str]](), set[tuple[str, str]]()
    for step in steps:
        if isinstance(step, Record):
            book.apply(step.process, step.data)
            hands[step.process] = set(step.accused)
        elif isinstance(step, tuple):
            book.apply(ClaimBook.mark(*step), b"settled")
            if step[0] in hands:
                settled.add(step)
        else:
            book.apply(step, b"")
            hands.pop(step, None)
            settled = {each for each in settled if each[0] != step}
        hands = {
            name: hand
            for name, hand in hands.items()
            if not any(process == name for process, _ in settled)
            or {(name, each) for each in hand} - settled
        }
        settled = {each for each in settled if each[0] in hands}
        expected = {
            message: {
                name
                for name, hand in hands.items()
                if name != "me" and message in hand and (name, message) not in settled
            }
            for message in MESSAGES
        }
        found = book.accusers(MESSAGES)
        assert {key: names for key, names in expected.items() if names} == {
            key: {each.process for each in accusers} for key, accusers in found.items()
        }


def test_a_suspect_alone_is_the_only_accused() -> None:
    """Whatever else is in hand waits, so it cannot be the cause."""
    alone = record("a", MESSAGES, alone=MESSAGES[0])
    assert {MESSAGES[0]} == alone.accused
    assert alone.evidence(MESSAGES[0]) == {
        "process": "a",
        "host": "worker-1",
        "pid": 12,
        "at": 7.0,
        "alone": True,
    }


def test_the_rest_of_a_record() -> None:
    """What is written again for a dead process has nothing that is settled."""
    book = ClaimBook("me")
    book.apply("a", record("a", MESSAGES).data)
    book.apply(ClaimBook.mark("a", MESSAGES[1]), b"settled")
    assert {*MESSAGES} - {MESSAGES[1]} == book.rest_of("a").accused


@pytest.mark.parametrize("data", [b"garbage", b"[]", b'{"at": "noon", "alone": 3}\n'])
def test_a_record_that_nobody_has_written(data: bytes) -> None:
    """It accuses nobody who is there, and breaks nothing."""
    strange = Record("a", data)
    assert (0.0, None, 0) == (strange.at, strange.alone, strange.turn)
    assert not strange.accused & set(MESSAGES)


def test_what_the_letter_says() -> None:
    """The crashes, as JSON; nothing if the claims were not the reason."""
    evidence = CrashLoop(
        MESSAGES[0], [record("a", MESSAGES), record("b", (), MESSAGES[0])]
    ).evidence
    assert "2" == evidence["FAILURE_CRASHES"]
    assert [False, True] == [each["alone"] for each in json.loads(evidence["FAILURE_CLAIMS"])]
    assert not CrashLoop().evidence


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        (None, "persistent://public/default/orders-billing-CLAIMS"),
        ("claims", "persistent://public/default/claims"),
    ],
)
def test_the_name_of_the_topic(topic: str | None, name: str) -> None:
    """Beside the topics of the letters, unless it is given."""
    assert name == pr.TopicClaims(topic=topic).name_for(["zebra", "orders"], "billing")


@pytest.mark.parametrize(
    "arguments", [{"topic": " "}, {"grace": -1}, {"wait": "soon"}, {"keep": 0}]
)
def test_what_is_no_store(arguments: dict) -> None:
    """The error names the argument."""
    with pytest.raises(pr.ConfigError, match=next(iter(arguments))):
        pr.TopicClaims(**arguments)
