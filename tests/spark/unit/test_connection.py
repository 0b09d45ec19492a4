"""How a cluster is reached, and that no secret is shown."""

from __future__ import annotations

import os
import pickle
import re
import traceback

import pulsar
import pytest

from pulsar_retry import ConfigError
from pulsar_retry.runtime.token import renewed
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.parsing import OptionReader

URL = "pulsar://localhost:6650"
SECRET = "s3cret"


def connect(**options: str) -> ClusterConnection:
    """Parse options in which `__` stands for a dot."""
    return ClusterConnection.parse(
        OptionReader({"service.url": URL} | {k.replace("__", "."): v for k, v in options.items()})
    )


def test_equal_connections_share_a_client():
    """They are equal and have one hash, however they came about."""
    one = connect(client__io_threads="2", client__listener_name="inner")
    other = connect(client__listener_name="inner", client__io_threads="2")
    assert one == other
    assert hash(one) == hash(pickle.loads(pickle.dumps(other)))


@pytest.mark.parametrize(
    "url",
    [
        "pulsar://broker",
        "pulsar+ssl://a.example:6651,b.example:6651",
        "pulsar://10.0.0.1:6650,10.0.0.2",
        "http://proxy:8080/path",
    ],
)
def test_urls_that_pulsar_client_takes(url):
    """One host or several, with or without ports."""
    connect(service__url=url).open().close()


@pytest.mark.parametrize(
    "hosts",
    [
        *("", "h:notaport", "h:70000", "h:0", "h:-1", "h:+5", "h:1:2", "h:6650,", ",h", "h h"),
        *("[::1]:6650", "user:s3cret@h:6650", "h:6650,pulsar://i:6650", "h:\uff16"),
    ],
)
def test_urls_that_no_client_can_be_opened_with(hosts):
    """They are refused on the driver, and not shown: somebody may have put a password there."""
    with pytest.raises(ConfigError, match=r"^service.url: expected a URL such as") as caught:
        connect(service__url=f"pulsar://{hosts}")
    assert SECRET not in str(caught.value)


def test_what_pulsar_client_refuses_all_the_same_has_a_slug(monkeypatch):
    """As every error of a task."""

    def refuse(*_args, **_kwargs):
        raise ValueError("invalid hostname: h")

    monkeypatch.setattr(pulsar, "Client", refuse)
    with pytest.raises(
        PulsarFailuresError, match=r"^\[PULSAR_SINK_INVALID_CONFIGURATION\] .*name: h"
    ):
        connect().open()


def test_what_a_client_is_opened_with(monkeypatch, tmp_path):
    """Everything that the options say, and a quiet log."""
    opened = []
    monkeypatch.setattr(pulsar, "Client", lambda *args, **kwargs: opened.append((args, kwargs)))
    token = tmp_path / "token"
    token.write_text(SECRET)
    connect(
        auth__token_file=str(token),
        tls__trust_certs_file="/certs.pem",
        tls__validate_hostname="true",
        client__io_threads="2",
    ).open()
    connect(log__level="none").open()

    ((url,), given), (_, other) = opened
    assert isinstance(given.pop("authentication"), pulsar.AuthenticationToken)
    assert pulsar.LoggerLevel.Warn == given.pop("logger").log_level
    assert URL == url
    assert given == {
        "tls_trust_certs_file_path": "/certs.pem",
        "tls_allow_insecure_connection": False,
        "tls_validate_hostname": True,
        "io_threads": 2,
    }
    assert (None, os.devnull) == (other["authentication"], other["logger"].log_file)


def test_a_token_in_a_file(tmp_path):
    """Likewise; what is read is what is in it now."""
    path = tmp_path / "token"
    path.write_text("old\n")
    connection = connect(auth__token_file=str(path))
    assert "old" == connection.read_token()
    path.write_text(SECRET)
    assert SECRET == connection.read_token()


@pytest.mark.parametrize("option", ["auth__token_env", "auth__token_file"])
def test_a_token_that_is_not_there(option):
    """The error says where it was looked for."""
    with pytest.raises(PulsarFailuresError, match=r"\[PULSAR_SINK_NO_TOKEN\] the .* NO_SUCH_TOKEN"):
        connect(**{option: "NO_SUCH_TOKEN"}).open()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("auth__token_env", f"eyJhbGciOiJIUzI1NiJ9.{SECRET}.sig"),
        ("auth__token_file", f"eyJhbGciOiJIUzI1NiJ9.{SECRET}.sig"),
        ("auth__oauth2__private_key", f'{{"client_secret": "{SECRET}"}}'),
        ("auth__oauth2__private_key", f"data:application/json;base64,{SECRET}"),
    ],
)
def test_a_secret_in_the_place_of_its_name_is_not_shown(option, text):
    """Errors and plans would show it."""
    issuer = {} if "token" in option else {"auth__oauth2__issuer_url": "https://issuer.example"}
    with pytest.raises(ConfigError, match=option.replace("__", ".")) as raised:
        connect(**{option: text} | issuer)
    assert SECRET not in str(raised.value)


def test_a_token_that_can_not_be_renewed_stays():
    """What pulsar-client calls on its own thread must not raise."""
    answers = iter(["new", None])
    current = renewed(lambda: next(answers), "old")
    assert ["new", "new", "new"] == [current(), current(), current()]


def test_errors_say_nothing_of_the_token(tmp_path):
    """Not even in a traceback with a cause."""
    path = tmp_path / "token"
    path.write_bytes(b"\xff" + SECRET.encode())
    try:
        connect(auth__token_file=str(path)).open()
    except PulsarFailuresError as error:
        text = "".join(traceback.format_exception(error))
    assert "holds no token" in text
    assert SECRET not in text


OAUTH2 = {
    "auth__oauth2__issuer_url": "https://issuer.example",
    "auth__oauth2__private_key": "/secrets/client.json",
}
CERTIFICATE = {"tls__certificate_file": "/secrets/client.pem", "tls__key_file": "/secrets/key.pem"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (OAUTH2 | {"auth__token_env": "TOKEN"}, "at most one of auth.token_env, auth.oauth2"),
        (OAUTH2 | CERTIFICATE, "at most one of auth.oauth2"),
        ({"auth__oauth2__issuer_url": "https://issuer.example"}, "auth.oauth2.private_key"),
        ({"auth__oauth2__scope": "all"}, "auth.oauth2.issuer_url"),
        ({"tls__certificate_file": "client.pem"}, "tls.key_file=None: expected a file"),
        ({"tls__key_file": "key.pem"}, "tls.certificate_file=None: expected a file"),
    ],
)
def test_half_an_identity_is_refused(options, text):
    """Or two of them."""
    with pytest.raises(ConfigError, match=re.escape(text)):
        connect(**options)
