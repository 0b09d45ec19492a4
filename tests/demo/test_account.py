"""The demo's account: each record counts once, where it ended."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.cli.demo.account import Account, reckon


@attrs.frozen
class Stored:
    """A message as it is read back."""

    key: str
    carried: dict[str, str] = attrs.field(factory=dict)

    def partition_key(self) -> str:
        return self.key

    def data(self) -> bytes:
        return b"{}"

    def properties(self) -> dict[str, str]:
        return self.carried

    def redelivery_count(self) -> int:
        return 0


def result(key: str, retries: int = 0) -> Stored:
    """Return a result."""
    return Stored(key, {"retries": str(retries)})


def exhausted(key: str) -> Stored:
    """Return the dead letter of a record whose three retries are used up."""
    return Stored(key, {"RECONSUMETIMES": "4", "FAILURE_REASON": "retries-exhausted"})


def invalid(key: str, reason: str = "missing-city") -> Stored:
    """Return the dead letter of an invalid record."""
    return Stored(key, {"FAILURE_REASON": reason})


def account(published: str, results: list[Stored], dead_letters: list[Stored]) -> Account:
    """Return the account; each letter of *published* is a key."""
    return reckon(published, results, dead_letters, retries=3)


def test_balanced() -> None:
    """Everything ended in exactly one place."""
    found = account("abc", [result("a"), result("b", 2)], [exhausted("c")])
    assert found.is_balanced
    assert found.reasons == {"retries-exhausted": 1}
    assert found.retried == {2: 2, 3: 2, 4: 1}
    assert found.copies == 0


def test_samples_differ_in_reason() -> None:
    """Three samples of three reasons when there are three, the most frequent reason first."""
    letters = [invalid("a"), invalid("b"), invalid("c", "foreign-country"), exhausted("d")]
    found = account("abcd", [], letters)
    assert [letter.key for letter in found.samples(3)] == ["a", "c", "d"]
    assert [letter.key for letter in found.samples(2)] == ["a", "c"]
    assert account("", [], []).samples(3) == []


def test_json_has_the_faults() -> None:
    """`--json` says what is wrong and shows samples with their properties."""
    facts = account("ab", [], [invalid("a")]).as_json(1)
    assert facts["ok"] is False
    assert facts["missing"] == ["b"]
    sample = {"key": "a", "payload": "{}", "properties": {"FAILURE_REASON": "missing-city"}}
    assert facts["samples"] == [sample]


@given(
    processed=st.lists(st.sampled_from("abcdef")),
    dead=st.lists(st.sampled_from("abcdef")),
    published=st.sets(st.sampled_from("abcdef")),
)
def test_balanced_means_a_partition(
    processed: list[str], dead: list[str], published: set[str]
) -> None:
    """Balanced exactly when the two places split what was published, copies aside."""
    found = reckon(published, map(result, processed), map(invalid, dead), retries=3)
    ended, both = set(processed) | set(dead), set(processed) & set(dead)
    assert found.is_balanced == (ended == published and not both)
    sets = (published - ended, both, ended - published)
    assert list(map(sorted, sets)) == list(found.faults.values())
    assert set(processed) == set(found.processed)
    assert found.copies == len(processed) + len(dead) - len(set(processed)) - len(set(dead))
