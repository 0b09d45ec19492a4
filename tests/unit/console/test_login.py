"""Who may look."""

from __future__ import annotations

import time

import pytest

from pulsar_retry.console.login import Access
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.redriving.source import operator_name

TOKEN = "correct horse battery"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example", ""])
def test_beyond_loopback_there_has_to_be_a_token(host) -> None:
    """Before anything listens."""
    with pytest.raises(ConfigError, match="access_token_file"):
        Access(host)
    assert Access(host, token=TOKEN).needs_login
    assert not any(Access(each).needs_login for each in ("127.9.9.9", "::1", "LOCALHOST"))


def test_a_proxy_is_beyond_loopback() -> None:
    """Whoever reaches it reaches us."""
    with pytest.raises(ConfigError, match="access_token_file"):
        Access("127.0.0.1", allow_hosts=["dlq.example"])


@pytest.mark.parametrize("token", ["", "short"])
def test_a_token_cannot_be_guessed(token) -> None:
    """An empty file is none."""
    with pytest.raises(ConfigError, match="16 characters"):
        Access("127.0.0.1", token=token)


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN.upper(), "\udcff", "ë"])
def test_another_token_opens_nothing(token) -> None:
    """Whatever is in it."""
    access = Access("127.0.0.1", token=TOKEN)
    assert access.log_in(token) is None
    assert not access.user(token)
    assert not access.user(None)


def test_sessions_end_by_themselves(monkeypatch) -> None:
    """After half a day."""
    access = Access("127.0.0.1", token=TOKEN)
    session = access.log_in(TOKEN)
    assert access.user(session)
    now = time.monotonic()
    monkeypatch.setattr("pulsar_retry.console.login.time.monotonic", lambda: now + 13 * 3600)
    assert not access.user(session)


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://localhost:81", "http://[", "file://"]
)
def test_forms_of_other_pages_are_not_ours(origin) -> None:
    """The origin is ours to the port."""
    access = Access("127.0.0.1")
    assert not access.is_own("localhost:80", origin, None)
    assert access.is_own("localhost:81", "http://localhost:81", "same-origin")
    assert not access.is_own("localhost:81", "http://localhost:81", "same-site")


def test_a_user_is_named_for_the_audit_log() -> None:
    """By the account on this machine, or by the address that has sent the token."""
    assert operator_name() == Access("127.0.0.1").user(None)
    access = Access("127.0.0.1", token=TOKEN)
    assert "token from 10.0.0.7" == access.user(access.log_in(TOKEN, "10.0.0.7"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "0.0.0.0"},
        {"host": "console.example", "allow_hosts": ["dlq.example"]},
        {"token": TOKEN},
        {"user_header": "X-User: ada"},
        {"user_header": ""},
    ],
    ids=str,
)
def test_a_header_is_believed_on_loopback_only(wrong) -> None:
    """Whoever reaches the console can send it, and there is one way to be known."""
    with pytest.raises(ConfigError, match="user_header"):
        Access(**{"host": "127.0.0.1", "user_header": "X-Forwarded-User"} | wrong)
    assert not Access("::1", user_header="Remote-User", allow_hosts=["dlq.example"]).needs_login


@pytest.mark.parametrize(
    ("values", "user"),
    [
        ([" ada "], "ada"),
        (["Zoë".encode().decode("latin-1")], "Zoë"),
        (["x" * 5000], "x" * 200),
        ([""], None),
        ([], None),
        (["ada", "bob"], None),
    ],
)
def test_a_proxy_names_one_user(values, user) -> None:
    """A header of the client beside that of the proxy names nobody."""
    assert user == Access("127.0.0.1", user_header="X-Forwarded-User").named(values)
