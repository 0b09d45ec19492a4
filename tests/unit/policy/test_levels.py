"""Delay levels: the table that TDMQ calls MESSAGE_DELAYLEVEL."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.backoff import levels_of

MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_MILLISECONDS = 864_000_000

TOKENS = st.sampled_from(sorted(MILLISECONDS)).flatmap(
    lambda unit: st.tuples(st.integers(0, MAX_MILLISECONDS // MILLISECONDS[unit]), st.just(unit))
)
TABLES = st.lists(TOKENS, min_size=1, max_size=30)
SPACES = st.text(" \t\r\n\f\v\N{NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}", min_size=1, max_size=4)


def printed(table: list[tuple[int, str]], space: str = " ") -> str:
    """Return *table* as a user writes it."""
    return space.join(f"{number}{unit}" for number, unit in table)


def on_the_wire(levels: pr.Levels) -> list[int]:
    """Return the delays in whole milliseconds, as letters carry them."""
    return [round(delay * 1000) for delay in levels.delays]


@given(TABLES)
@example([(864_000_000, "ms")])
@example([(10, "d"), (240, "h"), (14_400, "m"), (864_000, "s")])
def test_every_level_reads_back_to_the_millisecond(table: list[tuple[int, str]]) -> None:
    """What is printed is what is parsed, up to the longest delay, in every unit."""
    expected = [number * MILLISECONDS[unit] for number, unit in table]
    assert expected == on_the_wire(pr.Levels(printed(table)))


@given(TABLES, SPACES, SPACES, SPACES)
def test_any_white_space_separates_levels(
    table: list[tuple[int, str]], before: str, between: str, after: str
) -> None:
    """Doubled spaces make no empty levels, as they do in TDMQ's Go client."""
    plain = pr.Levels(printed(table))
    assert plain == pr.Levels(before + printed(table, between) + after)


def test_the_default_table_is_rocketmqs() -> None:
    """18 levels, from a second to two hours."""
    minutes = [60 * n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    assert (1, 5, 10, 30, *minutes) == pr.Levels().delays


@pytest.mark.parametrize("milliseconds", [1, 200, 300, 700, 1100, 4350, 864_000_000])
def test_milliseconds_are_as_exact_as_written(milliseconds: int) -> None:
    """700 ms are 0.7 s, and not 700 * 0.001."""
    assert (milliseconds / 1000,) == pr.Levels(f"{milliseconds}ms").delays


@given(TABLES, st.integers(0, 10**6))
def test_levels_count_from_one_and_are_clamped(table: list[tuple[int, str]], level: int) -> None:
    """0 means no delay; above the table its last level holds."""
    levels = pr.Levels(printed(table))
    clamped = min(level, len(table))
    assert clamped == levels.clamp(level)
    assert (0.0, *levels.delays)[clamped] == levels.delay(level)


@pytest.mark.parametrize("level", [-1, -2, 1.0, "1", None, True])
def test_what_is_no_level_is_refused(level: object) -> None:
    """The error names the argument, the value and what a level is."""
    expected = f"level={level!r}: expected 0 (no delay) or a level counted from 1"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.Levels("1s").delay(level)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["", " \n", None, 5, ["1s"], b"1s"])
def test_what_is_no_table_is_refused(table: object) -> None:
    """The error names the argument, the value and what a table looks like."""
    accepted = 'levels such as "1s 5s 10s 1m 2h" of at most 864000 s each'
    expected = f"delay_levels={table!r}: expected {accepted}"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        levels_of(table)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        "5",
        "s",
        "-1s",
        "+1s",
        "1.5s",
        "1S",
        "1w",
        "1s,",
        "1s;5s",
        "0x1s",
        "1e3s",
        "\N{ARABIC-INDIC DIGIT THREE}s",
        "864001s",
        "11d",
        "864000001ms",
        "1" + "0" * 400 + "s",
        "1" + "0" * 5000 + "s",
    ],
)
def test_a_malformed_level_is_named(bad: str) -> None:
    """One bad level among good ones is refused, and the error says which."""
    with pytest.raises(pr.ConfigError, match=f", not {re.escape(repr(bad))}$"):
        pr.Levels(f"1s {bad} 2h")


@pytest.mark.parametrize("delays", [(), (-1.0,), (864_001.0,), ("1s",), None, 5, (True,)])
def test_a_table_made_by_hand_is_checked(delays: object) -> None:
    """It holds what text can say, or does not exist."""
    with pytest.raises(pr.ConfigError, match=r"^delays="):
        pr.Levels(delays)  # type: ignore[arg-type]


def test_a_table_made_by_hand_is_one_that_was_parsed() -> None:
    """Seconds, ints too, in any order."""
    assert pr.Levels("5s 1s 500ms") == pr.Levels((5, 1, 0.5))
