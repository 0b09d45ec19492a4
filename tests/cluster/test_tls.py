"""TLS with a private certificate authority, for clients, the REST API and the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.errors import AdminError
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.parsing import OptionReader
from support.reading import SOON, SUBSCRIPTION

RUN = (sys.executable, "-m", "pulsar_retry")

#: Seconds for which a client tries to connect to a broker that it will refuse.
REFUSED = 10


@pytest.fixture
def as_localhost(cluster):
    """Return URLs with a host name that is in no certificate of the brokers."""
    it = cluster.it
    return {
        "service_url": f"pulsar+ssl://localhost:{it.brokers[0].tls_port}",
        "admin_url": it.admin_url_tls.replace("127.0.0.1", "localhost"),
    }


@pytest.fixture
def stranger(cluster):
    """Return a connection that trusts another authority."""
    return cluster.connection(tls_trust_certs_file=str(cluster.certificates.stranger))


def publish(connection, topic, seconds=90):
    """Publish a message, or fail after some seconds."""
    with connection.client(operation_timeout_seconds=seconds) as client:
        client.create_producer(topic).send(b"order")


def test_retries_and_dead_letters_with_tls(cluster, topic):
    """A message goes through the main topic, the retry topic and the dead-letter topic."""
    with cluster.connection().client(operation_timeout_seconds=90) as client:
        consumer = client.subscribe(
            topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
        )
        client.create_producer(topic).send(b"order")
        consumer.reconsume_later(consumer.receive(SOON), delay=0.1)
        consumer.dead_letter(consumer.receive(SOON), reason="invalid")
        reader = client.create_reader(f"{topic}-{SUBSCRIPTION}-DLQ", pulsar.MessageId.earliest)
        assert b"order" == reader.read_next(SOON).data()


def test_the_rest_api_with_tls_follows_redirects_to_the_owner(cluster, topic):
    """Any broker can be asked; the one that serves the topic answers."""
    publish(cluster.connection(), topic)
    for broker in cluster.it.brokers:
        url = f"https://127.0.0.1:{broker.web_tls_port}"
        with cluster.connection(admin_url=url).admin() as admin:
            assert 1 == admin.topics.stats(topic)["msgInCounter"]


def test_a_certificate_of_another_authority_is_refused(stranger, topic):
    """Both clients refuse it, and the client of the REST API says why."""
    with pytest.raises(pulsar.ConnectError):
        publish(stranger, topic, REFUSED)
    with pytest.raises(AdminError, match="CERTIFICATE_VERIFY_FAILED"), stranger.admin() as admin:
        admin.namespaces.topics("public/default")


def test_a_certificate_for_another_host_is_refused(cluster, as_localhost, topic):
    """The brokers' certificate is valid for 127.0.0.1, but not for localhost."""
    connection = cluster.connection(**as_localhost)
    with pytest.raises(pulsar.ConnectError):
        publish(connection, topic, REFUSED)
    with pytest.raises(AdminError, match="not valid for 'localhost'"), connection.admin() as admin:
        admin.namespaces.topics("public/default")


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_any_certificate_for_any_host_if_that_is_wanted(cluster, as_localhost, topic):
    """One option turns the checks off in both clients."""
    connection = cluster.connection(
        **as_localhost, tls_trust_certs_file=None, tls_allow_insecure=True
    )
    publish(connection, topic)
    with connection.admin() as admin:
        assert admin.topics.exists(topic)


def test_a_file_of_certificates_that_is_not_there(cluster, tmp_path):
    """A missing or invalid file is named before a connection is opened."""
    for content in (None, "no certificate"):
        file = tmp_path / "ca.pem"
        if content:
            file.write_text(content, encoding="ascii")
        connection = cluster.connection(tls_trust_certs_file=str(file))
        with pytest.raises(pr.ConfigError, match=r"ca\.pem"):
            connection.client()
        with pytest.raises(pr.ConfigError, match=r"ca\.pem"):
            connection.admin()


def test_the_options_of_spark(cluster, topic, tmp_path):
    """The options make a client that works; with another authority, it cannot connect."""
    token = tmp_path / "token"
    token.write_text(cluster.it.token("admin"), encoding="ascii")
    options = {
        "service.url": cluster.it.service_url_tls,
        "auth.token_file": str(token),
        "tls.trust_certs_file": str(cluster.certificates.authority),
        "tls.validate_hostname": "true",
        "log.level": "none",
    }
    client = ClusterConnection.parse(OptionReader(options)).open()
    client.create_producer(topic).send(b"row")
    client.close()
    options["tls.trust_certs_file"] = str(cluster.certificates.stranger)
    client = ClusterConnection.parse(OptionReader(options)).open()
    with pytest.raises(pulsar.ConnectError):
        client.create_producer(topic)
    client.close()


def test_a_client_known_by_its_certificate(cluster, topic, grant):
    """The client has only the rights of the role that its certificate names."""
    grant(topic, "robot", "produce")
    url, files = cluster.it.service_url_tls, cluster.certificates.client
    with pr.Client(
        url,
        pulsar.AuthenticationTLS(*map(str, files)),
        tls_trust_certs_file_path=str(cluster.certificates.authority),
        tls_validate_hostname=True,
        operation_timeout_seconds=90,
    ) as client:
        client.create_producer(topic).send(b"order")
        with pytest.raises(pulsar.AuthorizationError):
            client.subscribe(topic, SUBSCRIPTION)


def test_the_command_line_with_tls(cluster, topic):
    """Options give the authority and the token; with a wrong authority, exit code 1."""
    publish(cluster.connection(), topic)
    command = [
        *RUN,
        *("doctor", topic, SUBSCRIPTION, "--json"),
        *("--service-url", cluster.it.service_url_tls, "--admin-url", cluster.it.admin_url_tls),
        *("--token", cluster.it.token("admin"), "--tls-trust-certs-file"),
    ]
    good = subprocess.run(
        [*command, str(cluster.certificates.authority)], check=False, capture_output=True, text=True
    )
    assert {"check", "text", "verdict"} <= json.loads(good.stdout)[0].keys(), good.stderr
    bad = subprocess.run(
        [*command, str(cluster.certificates.stranger)], check=False, capture_output=True, text=True
    )
    assert 1 == bad.returncode
    assert "CERTIFICATE_VERIFY_FAILED" in bad.stdout + bad.stderr
