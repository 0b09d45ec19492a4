"""`pulsar-retry standalone`, and the root of the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from pulsar_retry import cli
from pulsar_retry._version import __version__
from pulsar_retry.standalone.jars.lock import jars_for
from support.waiting import eventually

RUN = (sys.executable, "-m", "pulsar_retry")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*RUN, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.broker
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_json_line_then_a_signal(stop: signal.Signals) -> None:
    """One line of JSON says where it is; a signal ends it with 0, and the JVM is gone."""
    command = [*RUN, "standalone", "--json", "--auth", "--fast-start"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        token = pulsar.AuthenticationToken(facts["admin_token"])
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        client = pulsar.Client(
            facts["service_url"],
            authentication=token,
            operation_timeout_seconds=90,
            logger=logger,
        )
        client.create_producer("topic").send(b"hello")
        client.close()
        process.send_signal(stop)
        assert process.wait(120) == 0
        assert process.stdout.read() == ""
    with pytest.raises(ProcessLookupError):
        os.kill(facts["pid"], 0)
    assert not Path(facts["data_dir"]).exists()


@pytest.mark.broker
def test_a_signal_during_the_start(tmp_path: Path) -> None:
    """It stops the broker as a later one does, and removes the folder."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*RUN, "standalone", "--fast-start"], env=environment) as process:
        eventually(lambda: any(tmp_path.rglob("*.log")))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.broker
def test_broker_that_dies_is_an_error(tmp_path: Path) -> None:
    """When the JVM ends by itself the command fails and says with which exit code."""
    data = str(tmp_path / "data")
    command = [*RUN, "standalone", "--fast-start", "--data-dir", data]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--json"], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        os.kill(json.loads(process.stdout.readline())["pid"], signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert json.loads(errors)["error"] == "the broker ended by itself with exit code 137"


def test_download_only_fills_the_cache() -> None:
    """The cache is filled, its place is told, and nothing is started."""
    result = run("standalone", "--download-only", "--json")
    assert result.returncode == 0
    facts = json.loads(result.stdout)
    jars = jars_for()  # beside those of other releases
    assert facts["jars"] == len(jars)
    assert all(Path(facts["cache"], jar.path).exists() for jar in jars)


def test_version() -> None:
    """`--version` tells the package's version."""
    assert run("--version").stdout.strip().endswith(__version__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-verb"], "No such command"),
        (["standalone", "--no-such-option"], "No such option"),
        (["standalone", "--set", "novalue"], "expected KEY=VALUE"),
        (["standalone", "--pulsar", "5.0"], "version='5.0': expected '4.0' or '4.2'"),
        (["standalone", "--heap", "lots"], "error: heap='lots': expected a size"),
    ],
)
def test_wrong_usage_is_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage ends with 2 and one clear line, whoever finds it: click or the library."""
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_failed_job_is_1() -> None:
    """An error of the library is one line and exit code 1."""
    result = run("standalone", "--startup-timeout", "0.2")
    assert result.returncode == 1
    assert "error: Pulsar was not ready after 0.2 s" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_click_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The core install has the command, but not what it needs; that is told, not raised."""
    monkeypatch.delitem(sys.modules, "pulsar_retry.cli._common.root", raising=False)
    monkeypatch.setitem(sys.modules, "click", None)
    assert cli.main([]) == 1
    assert 'pip install "pulsar-retry[cli]"' in capsys.readouterr().err
