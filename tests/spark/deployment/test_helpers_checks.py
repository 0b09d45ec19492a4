"""What `doctor` finds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import pulsar_retry as pr
from pulsar_retry.native.loading import native_rows
from pulsar_retry_spark import checks as module
from pulsar_retry_spark import doctor, register
from support.reading import SUBSCRIPTION

#: Says what the doctor finds in a session whose settings can't be changed later.
PROGRAM = """
from pulsar_retry_spark import doctor
from pulsar_retry_spark.local import local_session

conf = {"spark.speculation": "true", "spark.pulsar.auth.token": "hush", "spark.my.jwt": "eyJhush"}
with local_session(conf=conf) as spark:
    print(*doctor(spark), sep="\\n")
"""


@pytest.fixture
def options(broker, options):
    """Give options that name the REST API."""
    return options | {"admin.url": broker.admin_url}


def levels(findings):
    """Return the levels of each check."""
    result = {}
    for each in findings:
        result.setdefault(each.check, []).append(each.level)
    return result


def only(findings, check):
    """Return the one finding of a check."""
    (finding,) = [each for each in findings if each.check == check]
    return finding


def test_a_session_that_is_ready(spark):
    """Each check says what it has found."""
    register(spark)

    findings = doctor(spark)

    assert {
        "spark": ["ok"],
        "data source": ["ok"],
        "filters": ["warning"],
        "speculation": ["ok"],
        "secrets": ["ok"],
        "workers": ["ok"],
    } == levels(findings)
    text = only(findings, "workers").text
    assert f"pulsar-retry {pr.__version__}" in text
    why = native_rows().why
    assert text.endswith(f", rows in Python ({why})" if why else ", rows in C++")
    assert "→ spark.conf.set" in str(only(findings, "filters"))


def test_filters_are_pushed_down(spark):
    """The remedy is one."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert "ok" == only(doctor(spark), "filters").level
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_data_source_that_spark_does_not_know(spark, monkeypatch):
    """The remedy names what makes it known."""
    monkeypatch.setattr(module, "_NAME", "no-such-source")

    finding = only(doctor(spark), "data source")

    assert "error" == finding.level
    assert "DATA_SOURCE_NOT_FOUND" in finding.text
    assert "register(spark)" in finding.remedy


def worker_python(folder, script):
    """Make a program that runs instead of the workers' Python."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_workers_without_our_packages(spark, options, monkeypatch, tmp_path):
    """They are found by a job that needs none of them; nothing is asked that such workers can't."""
    bare = worker_python(tmp_path, f'exec "{sys.executable}" -S "$@"')
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)

    findings = doctor(spark, options)

    finding = only(findings, "workers")
    assert "error" == finding.level
    assert "pulsar-client —" in finding.text
    assert "and pyarrow in the Python that PYSPARK_PYTHON names" in finding.remedy
    assert {"broker", "topics"} <= levels(findings).keys()
    assert "broker from workers" not in levels(findings)


def test_workers_without_a_python(spark, monkeypatch, tmp_path):
    """What Spark says is a finding, too."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", worker_python(tmp_path, "exit 3"))

    finding = only(doctor(spark), "workers")

    assert "error" == finding.level
    assert "PYSPARK_PYTHON" in finding.remedy


def test_settings_that_tasks_see():
    """A secret in Spark's configuration is found and not shown; speculation is found."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert "warning speculation:" in done.stdout
    assert "may show spark.my.jwt, spark.pulsar.auth.token" in done.stdout
    assert "hush" not in done.stdout


def test_options_that_are_wrong(spark):
    """What the sink would say, and nothing is asked."""
    findings = doctor(spark, {"service.url": "pulsar://localhost:1", "topic": "t"})

    assert "subscription" in only(findings, "options").text
    assert "broker" not in levels(findings)


def test_topics_that_are_not_there_yet(spark, options, admin, namespace):
    """The broker may make them; the doctor does not."""
    findings = doctor(spark, options)

    assert ["ok"] == levels(findings)["broker"]
    assert ["ok"] == levels(findings)["broker from workers"]
    assert ["warning", "warning"] == levels(findings)["topics"]
    assert "subscriptions" not in levels(findings)
    assert [] == admin.topics(namespace)


def test_topics_that_are_there(spark, options, client, admin, topic):
    """One has a subscription, and the other would lose what is written."""
    client.subscribe(f"{topic}-{SUBSCRIPTION}-RETRY", "keeper").close()
    admin.create_topic(f"{topic}-{SUBSCRIPTION}-DLQ")

    findings = doctor(spark, options)

    assert ["ok"] == levels(findings)["broker from workers"]
    assert ["ok", "ok"] == levels(findings)["topics"]
    said = {each.level: each for each in findings if each.check == "subscriptions"}
    assert "-RETRY has a subscription" in said["ok"].text
    assert "-DLQ has no subscription" in said["warning"].text
    assert "create-subscription" in said["warning"].remedy


def test_what_a_killed_process_left_behind(spark, options, admin, topic):
    """A look for a topic makes subscriptions, which nobody removes if its process is killed."""
    register(spark)
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    code = """if True:
        import os, sys, pulsar
        from pulsar_retry.consumer import old_names
        old_names._unsubscribe = lambda *_: os.kill(os.getpid(), 9)
        old_names.exists(pulsar.Client(sys.argv[1]), sys.argv[2])"""
    admin.create_topic(dead)
    command = [sys.executable, "-c", code, options["service.url"], dead]
    killed = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=240)
    assert -9 == killed.returncode

    findings = [each for each in doctor(spark, options) if each.check == "subscriptions"]

    assert ["warning", "warning"] == [each.level for each in findings]
    found, none = findings
    assert "which a killed process left behind" in found.text
    assert "has no subscription, so" in none.text
    name = found.remedy.split()[-2]
    assert f"pulsar-admin topics unsubscribe --subscription {name} {dead}" == found.remedy
    assert [name] == list(admin.stats(dead)["subscriptions"])


@pytest.mark.parametrize(("size", "level"), [(None, "ok"), (6_000_000, "error")])
def test_messages_that_the_broker_refuses(spark, options, size, level):
    """Before the first large row is."""
    finding = only(doctor(spark, options | {"max_message_bytes": size}), "message size")

    assert level == finding.level
    assert "5242880" in finding.text


def test_a_broker_that_does_not_answer(spark, options):
    """Neither here nor there; the REST API is asked all the same."""
    nowhere = {"service.url": "pulsar://127.0.0.1:1", "client.operation_timeout_seconds": 1}

    findings = doctor(spark, options | nowhere)

    assert ["error"] == levels(findings)["broker"]
    assert ["error"] == levels(findings)["broker from workers"]
    assert "not reached from a worker: " in only(findings, "broker from workers").text
    assert ["ok"] == levels(findings)["message size"]


def test_an_api_that_does_not_answer(spark, options):
    """A finding, and no exception."""
    findings = doctor(spark, options | {"admin.url": "http://127.0.0.1:1"})

    assert "warning" == only(findings, "admin.url").level


def test_an_api_that_is_none(spark, options):
    """Some other server answers there, in its own language."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        findings = doctor(spark, options | {"admin.url": f"http://127.0.0.1:{server.server_port}"})
        server.shutdown()

    assert "warning" == only(findings, "admin.url").level


def test_options_without_a_topic(spark, broker):
    """Rows may name theirs, and then there is nothing to look for."""
    findings = doctor(spark, {"service.url": broker.service_url})

    assert "name no topic" in only(findings, "broker").text
    assert "broker from workers" not in levels(findings)


def test_a_spark_that_is_too_old(spark, monkeypatch):
    """Nothing else is looked at: it would fail."""
    monkeypatch.setattr(module, "_OLDEST_SPARK", (99, 1))

    (finding,) = doctor(spark)

    assert "error" == finding.level
    assert "Spark 99.1 or later" in finding.remedy


def test_a_token_among_the_options(spark, options):
    """It is not shown, and should not be there."""
    findings = doctor(spark, options | {"auth.token": "hush"})

    assert "warning" == only(findings, "options").level
    assert "hush" not in "".join(map(str, findings))
