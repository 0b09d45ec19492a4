"""The values that a dispatcher is given: what is refused, and what it says."""

from __future__ import annotations

import ssl
from datetime import timedelta

import pytest

import pulsar_retry as pr
from pulsar_retry.errors import ConfigError
from pulsar_retry.push import Connections, Form


def unverified(mode: ssl.VerifyMode) -> ssl.SSLContext:
    """Return a context that does not verify host names, and perhaps no certificates."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = mode
    return context


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"subscription_name": " "}, "subscription_name=' '"),
        ({"audience": " "}, "audience=' '"),
        ({"audience": "x"}, "audience='x': expected a service account too"),
        ({"sign": "pw"}, "sign='str': expected a ServiceAccount"),
        ({"wrapped": 1}, "^wrapped=1: expected"),
    ],
)
def test_a_form_of_nonsense(arguments, told):
    """It is refused, and no secret is shown."""
    with pytest.raises(ConfigError, match=told) as refused:
        Form(**arguments)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"allow_http": 1}, "^allow_http=1: expected"),
        ({"tls": "ca.pem"}, "tls='ca.pem'"),
        ({"tls": unverified(ssl.CERT_REQUIRED)}, "certificates and host names"),
        ({"tls": unverified(ssl.CERT_NONE)}, "certificates and host names"),
        ({"renew_after": 0}, "renew_after=0: expected"),
        ({"renew_after": "5m"}, "renew_after='5m': expected"),
    ],
)
def test_connections_of_nonsense(arguments, told):
    """What does not verify the server is nonsense, too."""
    with pytest.raises(ConfigError, match=told):
        Connections(**arguments)


def test_durations():
    """In seconds, however they were given."""
    assert 60.0 == Connections(renew_after=timedelta(minutes=1)).renew_after


def test_letters_of_nonsense():
    """Their naming is checked at once; the rest with the arguments of the subscription."""
    with pytest.raises(ConfigError, match="naming"):
        pr.Letters(naming="mine")
