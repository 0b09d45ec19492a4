"""How large the properties of a letter may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.wire.sizes import MOST_PROPERTIES, excess, most_bytes


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


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=10))
def test_the_bound_is_never_below_the_size(properties: dict[str, str]) -> None:
    """It counts four bytes for each character, which is exact for the widest ones."""
    size = sum(
        len(text.encode(errors="surrogatepass")) for each in properties.items() for text in each
    )
    assert size + 16 * len(properties) <= most_bytes(properties)
    widest = {
        "\U0001f41e" * len(name): "\U0001f41e" * len(text) for name, text in properties.items()
    }
    exact = sum(len(text.encode()) for each in widest.items() for text in each)
    assert exact + 16 * len(widest) == most_bytes(widest)
