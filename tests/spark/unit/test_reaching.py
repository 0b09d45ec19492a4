"""Whether there is a Pulsar at an address is asked once, with some patience."""

from __future__ import annotations

import pytest

from pulsar_retry.errors import UnreachableError
from pulsar_retry_spark import reaching
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.reaching import reach

URL = "pulsar://h"


@pytest.fixture
def asked(monkeypatch):
    """Return a function that says how often there is no answer, and gives the tokens that come."""

    def answers(failures: int) -> list[str | None]:
        tokens: list[str | None] = []

        def check(url, endpoint, *, validate_hostname):
            assert (URL, False) == (url, validate_hostname)
            tokens.append(endpoint.read_token())
            if len(tokens) <= failures:
                raise UnreachableError("nobody is there")

        monkeypatch.setattr(reaching, "check_broker", check)
        monkeypatch.setattr(reaching, "_reached", set())
        monkeypatch.setattr(reaching, "_PAUSE", 0.001)
        return tokens

    return answers


def test_a_broker_is_asked_once(asked):
    """With the token, and after a restart: that is waited for."""
    tokens = asked(2)
    for _ in range(2):
        reach(ClusterConnection(URL, token="s3cret"))
    assert ["s3cret"] * 3 == tokens


def test_what_is_wrong_is_named(asked, monkeypatch):
    """By errors of writing and of reading, each time that somebody asks."""
    monkeypatch.setattr(reaching, "PATIENCE", 0.0)
    tokens = asked(9)
    for _ in range(2):
        with pytest.raises(PulsarSourceError, match=r"^\[PULSAR_SOURCE_CONNECT_ERROR\] nobody is"):
            reach(ClusterConnection(URL), PulsarSourceError)
    assert [None] * 2 == tokens


def test_a_token_that_only_workers_have_is_not_missed(asked, monkeypatch):
    """The driver may be without: then it can't ask."""
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    tokens = asked(9)
    reach(ClusterConnection(URL, token_env="NO_SUCH_TOKEN"))
    assert [] == tokens
