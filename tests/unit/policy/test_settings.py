"""The one rule of precedence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.settings import PRECEDENCE, from_environment, resolve

SAID = st.fixed_dictionaries(
    {"default": st.just({"a": 0, "b": None})},
    optional={
        origin: st.none()
        | st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(), max_size=2)
        for origin in PRECEDENCE[:-1]
    },
)


def test_the_order_of_precedence() -> None:
    """The message's outcome is the strongest, the default the weakest."""
    order = ("outcome", "call", "subscriber", "client", "environment", "default")
    assert order == PRECEDENCE


@given(SAID)
def test_the_strongest_who_says_a_value_wins(said: dict) -> None:
    """None is nothing said, and false values are values."""
    for setting in resolve(said):
        stronger = PRECEDENCE[: PRECEDENCE.index(setting.origin)]
        others = [(said.get(each) or {}).get(setting.name) for each in stronger]
        assert [None] * len(stronger) == others
        assert setting.value == said[setting.origin][setting.name]


@given(SAID)
def test_every_setting_is_there_once(said: dict) -> None:
    """In the order of the defaults."""
    assert ["a", "b"] == [setting.name for setting in resolve(said)]


def test_a_setting_shows_its_origin() -> None:
    """`describe` is for reading."""
    assert "max_attempts = 5 (subscriber)" == str(pr.Setting("max_attempts", 5, "subscriber"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"user": {}}, "origin='user': expected one of outcome, call, subscriber,"),
        ({"client": {"c": 1}}, "client='c': expected one of a"),
    ],
)
def test_unknown_names_are_refused(said: dict, expected: str) -> None:
    """A typo would say nothing, in silence."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}"):
        resolve({"default": {"a": 0}, **said})


def test_variables_are_read_by_their_names() -> None:
    """Blank ones say nothing, and others are not ours."""
    environment = {
        "PULSAR_RETRY_MAX_AGE": " 90 ",
        "PULSAR_RETRY_BACKOFF": " ",
        "PULSAR_RETRY_MAVEN_MIRROR": "https://mirror",
        "MAX_ATTEMPTS": "1",
    }
    readers = {"max_age": int, "backoff": int, "max_attempts": int}
    assert {"max_age": 90} == from_environment(environment, readers)
