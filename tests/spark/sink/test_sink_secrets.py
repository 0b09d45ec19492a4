"""Tokens, OAuth2 and mutual TLS: secrets are taken from where they are, and are seen nowhere."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from pulsar_retry.standalone import Standalone
from pulsar_retry.standalone.ports import free_ports
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.sink import Task, send_batches
from support.brokers.cluster_config import TLS_PROVIDER, tls_settings
from support.brokers.clusters import Certificates
from support.brokers.hostile import HOSTILE
from support.spark.issuing import issuing

#: Writes with each way to authenticate, once well and twice badly, and tells all that Spark
#: knows of it: plans, errors, and its own log and pulsar-client's at their chattiest.
JOB = """
import json, os
from pulsar_retry_spark import register
from local_spark import local_session

def attempt(action):
    try:
        action()
    except Exception as error:
        print("FAILED", repr(error), str(error), getattr(error, "__notes__", ""))
    else:
        print("WRITTEN")

def write(frame, options):
    frame.write.format("pulsar-failures").options(**options).mode("append").save()

conf = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": os.environ["EVENTS"],
}
with local_session(master="local[1]", conf=conf) as spark:
    spark.sparkContext.setLogLevel("INFO")
    register(spark)
    frame = spark.range(10).selectExpr("cast(id AS STRING) AS payload", "false AS retryable")
    for options in json.loads(os.environ["OPTIONS"]):
        attempt(lambda: write(frame, options))
        attempt(lambda: write(frame.withColumnRenamed("payload", "pay"), options))
        attempt(lambda: write(frame, options | {"max_failed_rows": "5"}))
        read = spark.read.format("pulsar-failures").options(**options).load()
        read.explain(True)
        print(read._jdf.queryExecution().toString())
        print("READ", read.count())
    store = spark._jsparkSession.sharedState().statusStore()
    for execution in range(store.executionsCount()):
        print(store.executionsList().apply(execution).physicalPlanDescription())
"""


TOKENS = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Give certificates for the broker and for a client."""
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(certificates):
    """Give a broker that lets nobody in without a token or a certificate, and its URL for TLS."""
    port, web_port = itertools.islice(free_ports(), 2)
    settings = HOSTILE | tls_settings(certificates.broker, port, web_port)
    settings["authenticationProviders"] = f"{TOKENS},{TLS_PROVIDER}"
    settings["superUserRoles"] = "admin,robot"
    with Standalone(fast_start=True, auth=True, settings=settings) as broker:
        yield broker, f"pulsar+ssl://127.0.0.1:{port}"


@pytest.fixture
def said(guarded, tmp_path):
    """Return a function that runs the job, and returns all that can be read of it."""

    def said(ways, **environment):
        events = tmp_path / "events"
        events.mkdir()
        common = {"service.url": guarded[0].service_url, "subscription": "billing"}
        common["log.level"] = "debug"
        options = [common | {"topic": f"t{n}"} | way for n, way in enumerate(ways)]
        environment |= {"OPTIONS": json.dumps(options), "EVENTS": events.as_uri()}
        job = subprocess.run(
            [sys.executable, "-c", JOB],
            env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=280,
            check=False,
        )
        assert 0 == job.returncode, job.stdout
        said = [
            line.split()[0]
            for line in job.stdout.splitlines()
            if line.startswith(("WRITTEN", "FAILED", "READ"))
        ]
        assert ["WRITTEN", "FAILED", "FAILED", "READ"] * len(options) == said, job.stdout
        assert "unknown column 'pay'" in job.stdout
        assert "PULSAR_SINK_TOO_MANY_ROWS" in job.stdout
        assert "DEBUG" in job.stdout, "pulsar-client's log"
        logs = [each.read_text(errors="replace") for each in events.rglob("*") if each.is_file()]
        assert any("AppendData" in each for each in logs)
        return [job.stdout, *logs]

    return said


def test_tokens_work_and_are_seen_nowhere(guarded, said, tmp_path):
    """Not in a plan, an error, a log or an event."""
    token = guarded[0].admin_token
    path = tmp_path / "token"
    path.write_text(f"{token}\n")
    ways = {"auth.token": token, "auth.token_env": "MY_TOKEN", "auth.token_file": str(path)}
    for text in said([dict([way]) for way in ways.items()], MY_TOKEN=token):
        assert token not in text
        assert token.rpartition(".")[2] not in text, "its signature alone is as good"


def test_a_token_that_has_expired(guarded):
    """As during a long job: the error says the cause, and pulsar-client only that time is up."""
    options = {
        "service.url": guarded[0].service_url,
        "topic": "expired",
        "subscription": "billing",
        "auth.token": guarded[0].token("admin", -60),
        "client.operation_timeout_seconds": "1",
    }
    rows = pa.record_batch({"payload": [b"1"]})
    with pytest.raises(PulsarFailuresError, match=r"SINK_TIMEOUT\].*: it refuses the connection"):
        send_batches([rows], SinkOptions.parse(options), Task())


def test_oauth2_and_certificates_work_and_no_secret_is_seen(guarded, said, certificates, tmp_path):
    """Neither the client's secret nor its token, nor the private key of its certificate."""
    broker, url = guarded
    token = broker.token("admin")
    path = tmp_path / "client.json"
    path.write_text(json.dumps({"client_id": "job", "client_secret": "s3cret-of-job"}))
    certificate, key = map(str, certificates.client)
    with issuing(token) as issuer:
        oauth2 = {"issuer_url": issuer.url, "private_key": str(path), "audience": "pulsar"}
        texts = said(
            [
                {f"auth.oauth2.{name}": value for name, value in oauth2.items()},
                {
                    "service.url": url,
                    "tls.trust_certs_file": str(certificates.authority),
                    "tls.validate_hostname": "true",
                    "tls.certificate_file": certificate,
                    "tls.key_file": key,
                },
            ]
        )
    asked = {"client_id": ["job"], "client_secret": ["s3cret-of-job"], "audience": ["pulsar"]}
    assert asked.items() <= issuer.asked[0].items()
    private = certificates.client[1].read_text(encoding="ascii").splitlines()[1]
    for text in texts:
        for secret in ("s3cret-of-job", token.rpartition(".")[2], private):
            assert secret not in text
