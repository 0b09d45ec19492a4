"""Who may look."""

from __future__ import annotations

import time

import pytest

from pulsar_retry.console.login.access import Access, host_of, is_loopback
from pulsar_retry.errors import ConfigError

TOKEN = "correct horse battery"  # noqa: S105 - nobody has it


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "console.example"])  # noqa: S104
def test_beyond_loopback_there_has_to_be_a_token(host) -> None:
    """Before anything listens."""
    with pytest.raises(ConfigError, match="access_token_file"):
        Access(host)
    assert Access(host, token=TOKEN).needs_login


def test_a_proxy_is_beyond_loopback() -> None:
    """Whoever reaches it reaches us."""
    with pytest.raises(ConfigError, match="access_token_file"):
        Access("127.0.0.1", allow_hosts=["dlq.example"])


@pytest.mark.parametrize("token", ["", "short"])
def test_a_token_cannot_be_guessed(token) -> None:
    """An empty file is none."""
    with pytest.raises(ConfigError, match="16 characters"):
        Access("127.0.0.1", token=token)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((each, True) for each in ("127.0.0.1", "127.9.9.9", "::1", "LOCALHOST")),
        *((each, False) for each in ("0.0.0.0", "::", "localhost.example", "")),  # noqa: S104
    ],
)
def test_what_is_loopback(host, loopback) -> None:
    """All of it, and nothing else."""
    assert loopback == is_loopback(host)


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("LocalHost:8070", "localhost"),
        ("[::1]:80", "::1"),
        ("a.b.", "a.b"),
        ("", ""),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost@evil:80", "localhost@evil"),
    ],
)
def test_the_name_in_a_host_header(header, host) -> None:
    """Without its port, in small letters."""
    assert host == host_of(header)


def test_a_session_ends_with_the_logout() -> None:
    """And others do not."""
    access = Access("127.0.0.1", token=TOKEN)
    one, two = access.log_in(TOKEN), access.log_in(f" {TOKEN}\n")
    assert one is not None
    assert one != two
    access.log_out(one)
    assert not access.user(one, None)
    assert access.user(two, None)


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN.upper(), "\udcff", "ë"])
def test_another_token_opens_nothing(token) -> None:
    """Whatever is in it."""
    access = Access("127.0.0.1", token=TOKEN)
    assert access.log_in(token) is None
    assert not access.user(token, f"Bearer {token}")
    assert not access.user(None, None)
    assert not access.user("", "Basic x")


def test_sessions_end_by_themselves(monkeypatch) -> None:
    """After half a day."""
    access = Access("127.0.0.1", token=TOKEN)
    session = access.log_in(TOKEN)
    assert access.user(session, None)
    now = time.monotonic()
    monkeypatch.setattr("pulsar_retry.console.login.access.time.monotonic", lambda: now + 13 * 3600)
    assert not access.user(session, None)


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://localhost:81", "http://[", "file://"]
)
def test_forms_of_other_pages_are_not_ours(origin) -> None:
    """The origin is ours to the port."""
    access = Access("127.0.0.1")
    assert not access.is_own("localhost:80", origin, None)
    assert access.is_own("localhost:81", "http://localhost:81", "same-origin")
    assert not access.is_own("localhost:81", "http://localhost:81", "same-site")


def test_a_token_says_what_its_user_may() -> None:
    """There is one for operators, and one for viewers."""
    access = Access("127.0.0.1", token=TOKEN, viewer_token=TOKEN[::-1])
    roles = {}
    for token in (TOKEN, TOKEN[::-1]):
        user = access.user(access.log_in(token), None)
        assert user is not None
        roles[token] = user.operates
    assert [True, False] == list(roles.values())
    for wrong in ({"viewer_token": TOKEN}, {"token": TOKEN, "viewer_token": TOKEN}):
        with pytest.raises(ConfigError, match="viewer_token_file"):
            Access("127.0.0.1", **wrong)
    nobody = Access("127.0.0.1").user(None, None)
    assert nobody is not None
    assert nobody.operates
