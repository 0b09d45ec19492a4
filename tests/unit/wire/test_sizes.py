"""How large the properties of a letter may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.wire.sizes import MOST_PROPERTIES, excess


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=10))
def test_small_ones_are_fine(properties: dict[str, str]) -> None:
    """Whatever is in them."""
    assert 0 == excess(properties)


@given(st.characters(exclude_categories=["Cs"]), st.integers(-20, 20))
def test_bytes_count_and_not_characters(character: str, more: int) -> None:
    """Name and value in UTF-8, and 16 bytes for each property."""
    width = len(character.encode())
    count = MOST_PROPERTIES // width + more
    size = count * width + 1 + 16
    assert (size if size > MOST_PROPERTIES else 0) == excess({"a": character * count})
