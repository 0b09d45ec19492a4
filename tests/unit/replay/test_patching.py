"""Patches of dead letters, without a broker."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

import pulsar_retry as pr
from pulsar_retry.replay.redriving.patching import (
    DIFFS,
    Patcher,
    checked_patch,
    diff_of,
    merged,
    patched,
)
from pulsar_retry.wire.payloads import codec_of

ORDER = b'{"amount": -1, "city": "Zo\xc3\xab"}'


@attrs.frozen
class Raw:
    """A raw letter."""

    payload: bytes | None

    def data(self) -> bytes:
        return self.payload or b""

    def has_null_value(self) -> bool:
        return self.payload is None


def value_of(patch: Any, payload: bytes = ORDER, schema: str | None = None) -> Any:
    """Return what a patch makes of a payload."""
    return json.loads(patched(checked_patch(patch), payload, schema))


def test_patches() -> None:
    """An object, or the text of one."""
    assert {"amount": 1, "city": "Zoë"} == value_of('{"amount": 1}')
    assert {"amount": -1, "currency": "EUR"} == value_of({"city": None, "currency": "EUR"})
    assert {"amount": -1, "city": "Ulm"} == value_of({"city": "Ulm"}, schema="JSON")


@pytest.mark.parametrize("patch", [{}, {"amount": -1}, {"price": None}])
def test_what_a_patch_does_not_change(patch) -> None:
    """The payload stays byte for byte."""
    assert ORDER == patched(checked_patch(patch), ORDER, None)
    assert ORDER != patched(checked_patch({"amount": -1.0}), ORDER, None)


@pytest.mark.parametrize("patch", ["{", "3", "[]", [], "[3]", 3])
def test_what_is_no_patch(patch) -> None:
    """It is refused before anything is opened."""
    with pytest.raises(pr.ConfigError, match="patch"):
        checked_patch(patch)
    with pytest.raises(pr.ConfigError, match="patch"):
        pr.replay.Redrive("dlq", cluster=pr.replay.Cluster(), patch=patch)
    with pytest.raises(pr.ConfigError, match="patch"):
        checked_patch({"a": {1, 2}})


@pytest.mark.parametrize(
    ("payload", "schema", "problem"),
    [
        (None, None, "null value"),
        (b"\xff", None, "not JSON"),
        (b"text", "JSON", "not JSON"),
        (b"\x00\x00\x00\x01", "INT32", "schema INT32"),
        (ORDER, "AVRO", "schema AVRO"),
    ],
)
def test_what_cannot_be_patched(payload, schema, problem) -> None:
    """A patch changes JSON, and nothing else."""
    with pytest.raises(pr.PayloadError, match=problem):
        patched(checked_patch({"a": 1}), payload, schema)


@pytest.mark.parametrize(
    "text",
    ['{"a": 0.12345678901234567890}', '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}'],
)
def test_json_that_would_change(text) -> None:
    """A patch of another field must not change digits, or lose a repeated key."""
    with pytest.raises(pr.PayloadError, match="more than the patch"):
        patched(checked_patch({"b": 1}), text.encode(), None)


@pytest.mark.parametrize(
    "text", ['{"a": 1.10, "b": "\\u00eb", "c": 12345678901234567890}', "{}", '{"a": []}']
)
def test_json_that_stays(text) -> None:
    """Other ways to write the same value are fine."""
    assert {**json.loads(text), "z": 1} == value_of({"z": 1}, text.encode())


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
    assert json.loads(result) == merged(json.loads(patch), json.loads(value))


def test_a_diff() -> None:
    """JSON by lines, with readable letters, and not endless."""
    after = patched(checked_patch({"amount": 1}), ORDER, None)
    assert [
        "--- payload before",
        "+++ payload after",
        " {",
        '-  "amount": -1,',
        '+  "amount": 1,',
        '   "city": "Zoë"',
        " }",
    ] == diff_of("1:2", ORDER, after).text.splitlines()
    assert "more lines" in diff_of("1:2", json.dumps(list(range(1000))).encode(), b"[]").text
    wide = json.dumps("x" * 1_000_000).encode()
    assert len(diff_of("1:2", wide, b'"y"').text) < 3_000


def test_a_dry_run_shows_the_first_letters() -> None:
    """Not of all."""
    patcher = Patcher(checked_patch({"a": 1}), lambda _raw: codec_of("JSON", ""))
    for number in range(20):
        assert b'{"a":1}' == patcher.payload(Raw(b"{}"), f"1:{number}")
    assert patcher.payload(Raw(b'{"a": 1}'), "1:20") is None
    assert DIFFS == len(patcher.diffs)
    assert "1:0" == patcher.diffs[0].message_id
