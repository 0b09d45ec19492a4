"""A payload as text, JSON or hex."""

from __future__ import annotations

import json
import re

from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_retry.console.payload import (
    MOST,
    as_hex,
    as_json,
    displayed,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_json_says_the_same_with_line_breaks(value) -> None:
    """Whatever is nested in what, and whatever a string has in it."""
    laid_out = as_json(json.dumps(value).encode())
    assert laid_out is not None
    assert value == json.loads(laid_out)


def test_json_that_would_change_is_shown_as_it_is() -> None:
    """Keys that come twice and digits may be why a letter is dead."""
    for sent in (b'{"a": 1, "a": 2}', b"[12345678901234567890.1]", b"[1e400]", rb'["\ud83d half"]'):
        assert sent.decode() == as_json(sent)
    sent = rb'{"a":1.10,"b":"\u00eb \" {[,:]}","c":[],"d":[ {} ,1e5]}'
    expected = """{
  "a": 1.1,
  "b": "ë \\" {[,:]}",
  "c": [],
  "d": [
    {},
    100000.0
  ]
}"""
    assert expected == as_json(sent)


@given(st.binary())
@example(bytes(range(256)))
def test_hex_has_every_byte(payload) -> None:
    """Sixteen on a line, after its offset and before what of them is ASCII."""
    lines = as_hex(payload).splitlines()
    assert payload == b"".join(bytes.fromhex(line[10:57]) for line in lines)
    assert [f"{at:08x}" for at in range(0, len(payload), 16)] == [line[:8] for line in lines]
    ascii_ = re.sub(rb"[^ -~]", b".", payload).decode()
    assert [ascii_[at : at + 16] for at in range(0, len(payload), 16)] == [
        line[59:] for line in lines
    ]


@given(st.binary(), st.sampled_from(["text", "json", "hex", None, "odd"]))
def test_everything_can_be_shown(payload, asked) -> None:
    """In some form, and as text without what drives a terminal or turns lines around."""
    found = displayed(payload, asked)
    assert (len(payload), 0) == (found.size, found.left_out)
    assert not set(found.content) & {"\x1b", "\u202e", "\x00", "\r"}


def test_a_payload_is_shown_as_what_it_is() -> None:
    """Unless somebody asks for another form that it has."""
    assert "json" == displayed(b'{"a": 1}').form
    assert "text" == displayed(b"12").form
    assert "json" == displayed(b"12", "json").form
    assert "text" == displayed(b"{", "json").form
    assert "hex" == displayed(b"\xff").form
    assert "text" == displayed(b"\xff", "text").form
    assert "hex" == displayed(b'{"a": 1}', "hex").form


def test_of_a_large_payload_the_beginning_is_shown() -> None:
    """A page has to come to its end, and says what is missing."""
    found = displayed(b"x" * (MOST + 5))
    assert ("text", MOST, 5) == (found.form, len(found.content), found.left_out)


def test_json_without_end_is_text() -> None:
    """What nests too deep to be read is no fault of the page."""
    assert "text" == displayed(b"[" * 50_000 + b"]" * 100).form
