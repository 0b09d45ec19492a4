"""How to reach a cluster, and what belongs to a subscription in it."""

from __future__ import annotations

import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Subscription


@pytest.mark.parametrize(
    ("service_url", "admin_url"),
    [
        ("pulsar://localhost:6650", "http://localhost:8080"),
        ("pulsar://a:6650,b:6650", "http://a:8080"),
        ("pulsar+ssl://a:6651", "https://a:8443"),
        ("pulsar://[::1]:6650", "http://[::1]:8080"),
        ("https://a:8443", "https://a:8443"),
    ],
)
def test_the_rest_api_is_where_it_usually_is(service_url, admin_url) -> None:
    """Unless it is said."""
    assert admin_url == Cluster(service_url).admin_url
    assert "http://else:1" == Cluster(service_url, admin_url="http://else:1").admin_url


@pytest.mark.parametrize(
    "wrong",
    [
        {"service_url": "localhost:6650"},
        {"service_url": "ftp://a"},
        {"service_url": None},
        {"service_url": "pulsar://["},
        {"service_url": "pulsar://a:b"},
        {"service_url": "pulsar://a,[:1"},
        {"admin_url": "http://]"},
        {"admin_url": "http://a:99999"},
        {"admin_url": "pulsar://a"},
        {"admin_url": "a:8080"},
        {"token": "t", "token_file": "f"},
    ],
)
def test_what_is_not_accepted(wrong) -> None:
    """It is said before anything is opened, with the argument's name."""
    with pytest.raises(pr.ConfigError, match=list(wrong)[-1]):
        Cluster(**wrong)


def test_the_environment(tmp_path) -> None:
    """Its names are those of the fields."""
    token_file = tmp_path / "token"
    token_file.write_text("secret\n")
    cluster = Cluster.from_environment(
        {
            "PULSAR_SERVICE_URL": "pulsar+ssl://a:6651",
            "PULSAR_TOKEN_FILE": str(token_file),
            "PULSAR_TLS_TRUST_CERTS_FILE": "ca.pem",
            "PULSAR_TLS_ALLOW_INSECURE": "TRUE",
        }
    )

    assert ("secret", "ca.pem", True) == (
        cluster.read_token(),
        cluster.tls_trust_certs_file,
        cluster.tls_allow_insecure,
    )
    assert Cluster() == Cluster.from_environment({})
    with pytest.raises(pr.ConfigError, match="PULSAR_TLS_ALLOW_INSECURE='perhaps'"):
        Cluster.from_environment({"PULSAR_TLS_ALLOW_INSECURE": "perhaps"})


def test_no_repr_shows_a_token() -> None:
    """Not that of a client either."""
    cluster = Cluster(token="secret")
    assert "secret" not in f"{cluster!r}{cluster.admin()!r}{Subscription(cluster, 't', 's')!r}"


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_token_file_without_a_token(tmp_path, content) -> None:
    """It is a usage error that names the file."""
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(pr.ConfigError, match="token_file="):
        Cluster(token_file=str(path)).read_token()


def test_a_subscription_and_its_letters() -> None:
    """Full names, by the dialect or as given."""
    default = Subscription(Cluster(), "orders", "billing")
    tdmq = Subscription(Cluster(), "orders", "billing", naming="tdmq-2.7.2")
    named = Subscription(Cluster(), "a/b/orders", "billing", dead_letter_topic="a/b/dead")

    root = "persistent://public/default"
    assert (f"{root}/orders-billing-RETRY", f"{root}/orders-billing-DLQ") == (
        default.retry_letter_topic,
        default.dead_letter_topic,
    )
    assert f"{root}/billing-DLQ" == tdmq.dead_letter_topic
    assert ("persistent://a/b/orders-billing-RETRY", "persistent://a/b/dead") == (
        named.retry_letter_topic,
        named.dead_letter_topic,
    )


@pytest.mark.parametrize(("topic", "name"), [("a/b", "s"), ("", "s"), ("t", ""), ("t", None)])
def test_what_is_no_subscription(topic, name) -> None:
    """It is said before anything is opened."""
    with pytest.raises(pr.ConfigError):
        Subscription(Cluster(), topic, name)
