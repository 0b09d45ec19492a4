"""Quarantine and claims, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 100))
def test_what_is_held(claims: int, crashes: int, redeliveries: int) -> None:
    """Enough claims, or enough dead workers; redeliveries only where they are to count."""
    counts = {"claims": claims, "worker_crashes": crashes, "redeliveries": redeliveries}
    killed = claims >= 3 or crashes >= 3
    assert killed == pr.Quarantine().holds(**counts)
    either = killed or redeliveries >= 20
    assert either == pr.Quarantine(max_redeliveries=20).holds(**counts)


def test_claims_outlive_their_process(tmp_path: Path) -> None:
    """What is not settled is counted, by whoever looks into the folder."""
    first, second = pr.FileClaims(tmp_path / "claims"), pr.FileClaims(tmp_path / "claims")
    assert [0, 1, 0] == [first.claim("a"), second.claim("a"), second.claim("b")]
    first.settle("a")
    first.settle("a")
    assert [0, 1] == [second.claim("a"), second.claim("b")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_crashes": 0}, "max_crashes=0"),
        ({"max_redeliveries": 0}, "max_redeliveries=0"),
        ({"store": "claims"}, "store='claims': expected a ClaimStore"),
    ],
)
def test_what_is_no_quarantine(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.Quarantine(**arguments)
