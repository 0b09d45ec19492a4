"""Edits of dead letters, without a broker."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Edit, LetterContent
from pulsar_retry.replay.editing.diff import diff_of
from pulsar_retry.replay.editing.edit import merged
from pulsar_retry.wire.payloads.choosing import codec_of


def letter(
    payload: bytes | None = b'{"amount": -1, "city": "Zo\xc3\xab"}', **more: Any
) -> LetterContent:
    """Return a letter."""
    more = {"properties": {"shop": "7", "REAL_TOPIC": "t"}, "key": "k", "message_id": "1:2"} | more
    return LetterContent(payload=payload, **more)


def applied(function: Callable[[LetterContent], Any], given: LetterContent | None = None) -> Any:
    """Return what an edit makes of a letter."""
    return Edit.of_function(function).apply(given or letter())


def test_a_function() -> None:
    """It changes the value, properties and the key, and the letter itself stays as it was."""

    def fix(old: LetterContent) -> LetterContent:
        order = old.value
        order["amount"] = abs(order["amount"])
        return old.with_value(order).with_properties({"shop": None, "by": "ada"}).with_key("z")

    given = letter()
    edited = applied(fix, given)
    assert {"amount": 1, "city": "Zoë"} == json.loads(edited.payload)
    assert ({"REAL_TOPIC": "t", "by": "ada"}, "z") == (dict(edited.properties), edited.key)
    assert letter() == given


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda each: each.value["price"], "KeyError: 'price'"),
        (lambda _: 3, "returned int"),
        (lambda each: each.with_properties({"REAL_TOPIC": "other"}), "REAL_TOPIC"),
        (lambda each: each.with_properties({"n": 3}), "'n'=3"),
        (lambda each: each.with_key(3), "a key is a text"),
        (lambda each: each.with_payload("text"), "a payload is bytes"),
        (lambda each: each.with_value({1, 2}), "not JSON"),
        (lambda each: attrs.evolve(each, payload=None), "remove the payload"),
    ],
)
def test_what_is_refused(function, problem) -> None:
    """An edit that fails, or whose result cannot take the place of the letter."""
    with pytest.raises(pr.PayloadError, match=problem):
        applied(function)


def test_what_is_left() -> None:
    """A function that returns None leaves the letter; a value that stays, stays byte for byte."""
    assert applied(lambda _: None) is None
    assert letter() == applied(lambda each: each.with_value(each.value))
    assert letter() != applied(lambda each: each.with_value({**each.value, "amount": -1.0}))


def test_one_function_with_other_values_is_another_edit() -> None:
    """Else the second edit would leave what the first has changed, and say nothing."""

    def pay(old: LetterContent, currency: str) -> LetterContent:
        return old.with_value({**old.value, "currency": currency})

    def paying(currency: str) -> Callable[[LetterContent], LetterContent]:
        return lambda old: pay(old, currency)

    for made in (paying, lambda each: functools.partial(pay, currency=each)):
        euro, dollar = (Edit.of_function(made(each)) for each in ("EUR", "USD"))
        assert euro.id != dollar.id
        assert euro.id == Edit.of_function(made("EUR")).id
    assert "pay" in euro.name


@pytest.mark.parametrize("payload", [None, b"\xff", b"text"])
def test_a_payload_without_a_value(payload) -> None:
    """A patch refuses it; a function may still change properties, or set a payload."""
    with pytest.raises(pr.PayloadError):
        Edit.of_patch({"a": 1}).apply(letter(payload))
    assert (
        "x"
        == applied(lambda each: each.with_properties({"a": "x"}), letter(payload)).properties["a"]
    )
    assert b"{}" == applied(lambda each: each.with_payload(b"{}"), letter(payload)).payload


def test_a_payload_must_fit_its_schema() -> None:
    """Other bytes than those of the schema would be a poison message."""
    given = letter(b"\x00\x00\x00\x01", codec=codec_of("INT32", ""))
    with pytest.raises(pr.PayloadError, match="INT32"):
        applied(lambda each: each.with_payload(b"1"), given)
    assert 2 == applied(lambda each: each.with_value(each.value + 1), given).value


def test_patches() -> None:
    """A list is a JSON patch, an object is a merge patch."""
    edit = Edit.of_patch(
        '[{"op": "test", "path": "/amount", "value": -1}, '
        '{"op": "replace", "path": "/amount", "value": 1}]'
    )
    assert {"amount": 1, "city": "Zoë"} == edit.apply(letter()).value
    with pytest.raises(pr.PayloadError, match="JsonPatchTestFailed"):
        edit.apply(letter(b'{"amount": 2}'))
    merge = Edit.of_patch({"city": None, "currency": "EUR"})
    assert {"amount": -1, "currency": "EUR"} == merge.apply(letter()).value


@pytest.mark.parametrize("patch", ["{", "3", '[{"op": "no"}]', '[{"op": "add"}]', "[3]", 3])
def test_what_is_no_patch(patch) -> None:
    """It is refused before anything is opened."""
    with pytest.raises(pr.ConfigError, match="patch"):
        Edit.of_patch(patch)


#: The examples of RFC 7396, appendix A.
RFC_7396 = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
]


@pytest.mark.parametrize(("value", "patch", "result"), RFC_7396)
def test_a_merge_patch_is_that_of_the_rfc(value, patch, result) -> None:
    """All of its examples."""
    assert json.loads(result) == merged(json.loads(value), json.loads(patch))


def test_an_edit_has_an_identity() -> None:
    """It is the same for the same patch, and another one for another patch or function."""
    first, same, other = (Edit.of_patch(each, "p") for each in ({"a": 1}, '{"a": 1}', {"a": 2}))
    assert first.id == same.id != other.id
    assert first.id.startswith("p@")
    function = Edit.of_function(letter, "fixes:amount")
    assert function.id == Edit.of_function(letter, "fixes:amount").id
    with pytest.raises(pr.ConfigError, match="function"):
        Edit.of_function(3)


def test_a_diff() -> None:
    """JSON by lines, with readable letters; other payloads by their size and bytes."""
    before = letter()
    after = before.with_value({"amount": 1, "city": "Zoë"}).with_properties({"shop": "8"})
    assert [
        "--- payload before",
        "+++ payload after",
        " {",
        '-  "amount": -1,',
        '+  "amount": 1,',
        '   "city": "Zoë"',
        " }",
        "--- properties before",
        "+++ properties after",
        " REAL_TOPIC = t",
        "-shop = 7",
        "+shop = 8",
    ] == diff_of(before, after).text.splitlines()
    binary = diff_of(letter(b"\xff\x00"), letter(b"\xff\x01\x02")).text.splitlines()
    assert ["-2 bytes", "+3 bytes"] == [binary[2], binary[4]]
    assert "00000000  ff 00" in binary[3]
    assert "-a" in diff_of(letter(b"a"), letter(b"b")).text.splitlines()
    assert "-k" in diff_of(letter(), letter(key=None)).text.splitlines()
    long = letter(json.dumps(list(range(1000))).encode())
    assert "more lines" in diff_of(long, long.with_value([])).text
    wide = letter(b"x" * 1_000_000)
    assert len(diff_of(wide, wide.with_payload(b"y")).text) < 3_000
