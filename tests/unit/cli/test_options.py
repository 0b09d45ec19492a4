"""What the operator's verbs accept, and what they say when they do not; nothing is opened here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pulsar
import pytest
from click.testing import CliRunner

import pulsar_retry as pr
from pulsar_retry import cli
from pulsar_retry.cli._common.cluster import cluster_options
from pulsar_retry.cli._common.output import clean, words_of_age
from pulsar_retry.ops.formatting import moment
from pulsar_retry.replay import Cluster, Redrive, Redriven


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch) -> None:
    """Say nothing in the environment."""
    for name in ("SERVICE_URL", "ADMIN_URL", "TOKEN", "TOKEN_FILE", "TLS_ALLOW_INSECURE"):
        monkeypatch.delenv(f"PULSAR_{name}", raising=False)


@pytest.mark.parametrize("group", ["", "audit", "dlq", "push", "snapshot"])
def test_a_list_of_commands_is_not_cut(group, capsys) -> None:
    """Who needs one reads no dots."""
    cli.main([*group.split(), "--help"])
    assert "..." not in capsys.readouterr().out.replace("[ARGS]...", "")


@pytest.mark.parametrize("verb", ["audit ls", "dlq ls", "metrics"])
def test_a_namespace_has_two_parts(verb, capsys) -> None:
    """Wrong usage, which names it."""
    assert 2 == cli.main([*verb.split(), "public", "--admin-url", "http://127.0.0.1:1"])
    assert "namespace='public': expected tenant/namespace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "wait"),
    [([], 60), (["--yes"], 0), (["--json"], 0), (["--yes", "--wait", "5m"], 300)],
)
def test_who_is_asked_is_told_what_became_of_the_letters(options, wait, monkeypatch) -> None:
    """For a minute at most; nobody else waits who has not said so."""
    told: list[Any] = []

    class Told(Redrive):
        def __init__(self, source: str, **given: Any) -> None:
            told.append(given["wait"])
            super().__init__(source, **given)

        def run(self, _progress: Any = None) -> Redriven:
            raise pr.RedriveError("here is no broker")

    monkeypatch.setattr("pulsar_retry.cli._common.redriving.Redrive", Told)
    assert 0 != cli.main(["redrive", "dlq", "--no-audit", *options])
    assert [wait] == told


def test_the_root_explains_the_connection(capsys) -> None:
    """All options of it, with their names in the environment; verbs have one, and say so."""
    assert 0 == cli.main(["--help"])
    output = capsys.readouterr().out

    @click.command()
    @cluster_options
    def command(*, cluster: Cluster) -> None:
        """Do nothing."""

    options = [each for each in command.params if isinstance(each, click.Option)]
    assert len(options) > 5
    for each in options:
        assert each.opts[0] in output
        assert str(each.envvar) in output
    assert ["--service-url"] == [each.opts[0] for each in options if not each.hidden]


def cluster_of(*arguments: str, **environment: str) -> Cluster:
    """Return what the options make."""
    found: list[Any] = []

    @click.command()
    @cluster_options
    def command(*, cluster: Cluster) -> None:
        found.append(cluster)

    CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False)
    cluster: Cluster = found[0]
    return cluster


def test_options_win_over_the_environment(tmp_path) -> None:
    """Each setting by itself; a token that is said replaces the environment's."""
    around = {
        "PULSAR_SERVICE_URL": "pulsar://environment:1",
        "PULSAR_ADMIN_URL": "http://environment:2",
        "PULSAR_TOKEN": "environment",
        "PULSAR_TLS_ALLOW_INSECURE": "true",
    }
    assert ("pulsar://environment:1", "http://environment:2", "environment", True) == tuple(
        getattr(cluster_of(**around), name)
        for name in ("service_url", "admin_url", "token", "tls_allow_insecure")
    )
    said = cluster_of("--service-url", "pulsar://option:1", **around)
    assert ("pulsar://option:1", "http://environment:2") == (said.service_url, said.admin_url)
    assert not cluster_of("--tls-verify", **around).tls_allow_insecure
    token_file = tmp_path / "token"
    token_file.write_text("fresh")
    assert "fresh" == cluster_of("--token-file", str(token_file), **around).read_token()
    assert "option" == cluster_of("--token", "option", PULSAR_TOKEN_FILE="none").token
    assert Cluster() == cluster_of()


@pytest.mark.parametrize(
    "arguments",
    [
        ["redrive", "dlq"],
        ["redrive", "dlq", "--json"],
        ["redrive"],
        ["redrive", "a/b/c/d", "--yes"],
        ["redrive", "dlq", "--yes", "--to", "dlq"],
        ["redrive", "dlq", "--yes", "--rate", "0"],
        ["redrive", "dlq", "--yes", "--limit", "0"],
        ["redrive", "dlq", "--yes", "--property", "shop"],
        ["redrive", "dlq", "--yes", "--since", "yesterday"],
        ["redrive", "dlq", "--yes", "--service-url", "nowhere"],
        ["dlq", "show"],
        ["dlq", "ls", "public"],
        ["dlq", "nonsense"],
        ["console", "--host", "0.0.0.0"],
        ["console", "--allow-host", "dlq.example"],
        ["console", "--host", "0.0.0.0", "--user-header", "X-User"],
        ["console", "--namespace", "public"],
        ["console", "--access-token-file", "/nowhere"],
        ["console", "--port", "65536"],
        ["console", "--every", "0"],
        ["doctor", "orders"],
        ["doctor", "a/b", "billing"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments, capsys, monkeypatch) -> None:
    """Exit code 2 and what is accepted, before anything is opened: nothing listens there."""
    monkeypatch.setenv("PULSAR_SERVICE_URL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://127.0.0.1:1")
    assert 2 == cli.main(arguments)
    assert capsys.readouterr().err


@pytest.mark.parametrize("verb", [("dlq", "ls"), ("dlq", "show", "d"), ("redrive", "d", "--yes")])
def test_a_cluster_that_is_not_there(verb, capsys, monkeypatch) -> None:
    """Exit code 1 and one line."""
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_SERVICE_URL", "pulsar://127.0.0.1:1")
    assert 1 == cli.main(verb)
    errors = capsys.readouterr().err
    assert "://127.0.0.1:1 was not reached: connection refused\n" in errors
    assert 1 == len(errors.splitlines())


def test_a_broker_that_refuses(capsys, monkeypatch) -> None:
    """Exit code 1 and one line, for what pulsar-client raises, too."""

    def refuse(*_: object, **__: object) -> None:
        raise pulsar.AuthorizationError("no right to consume")

    monkeypatch.setattr("pulsar_retry.cli.dlq.letter_topics", refuse)
    assert 1 == cli.main(["dlq", "ls", "public/default"])
    errors = capsys.readouterr().err
    assert (
        "error: the broker was not reached, or refused the request: no right to consume\n" == errors
    )


def test_times_are_moments_or_how_long_ago() -> None:
    """Without a zone they are UTC."""
    assert datetime(2026, 1, 31, 12, tzinfo=UTC) == moment("--since", "2026-01-31T12:00")
    assert datetime(2026, 1, 31, 11, tzinfo=UTC) == moment("--since", "2026-01-31T12:00+01:00")
    ago = datetime.now(UTC) - moment("--since", "2h")
    assert abs(ago - timedelta(hours=2)) < timedelta(minutes=1)
    assert moment("--since", None) is None


def test_letters_do_not_drive_the_terminal() -> None:
    """What could is replaced; text in any script stays."""
    assert "a\ufffd[2Jb\n\tü漢🙂\ufffd" == clean("a\x1b[2Jb\n\tü漢🙂\u202e")


@pytest.mark.parametrize(
    ("age", "words"), [(None, ""), (0, "0 s"), (59, "59 s"), (90, "2 min"), (7200, "2 h")]
)
def test_ages_for_people(age, words) -> None:
    """In the largest unit that fits."""
    assert words == words_of_age(age)


def test_errors_are_json_where_results_are(capsys, monkeypatch) -> None:
    """On standard error, so that results are never mixed with them."""
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://127.0.0.1:1")
    for arguments, code, kind, name in (
        (["doctor", "a/b", "billing"], 2, "ConfigError", "config"),
        (["redrive", "--nonsense"], 2, "NoSuchOption", "usage"),
        (["dlq", "export", "a/b"], 2, "ConfigError", "config"),
        (["snapshot", "rm", "orders", "x", "--yes"], 1, "AdminError", "unreachable"),
        (["dlq", "ls"], 1, "AdminError", "unreachable"),
    ):
        assert code == cli.main([*arguments, "--json"])
        output, errors = capsys.readouterr()
        facts = json.loads(errors)
        assert ("", kind, code) == (output, facts["kind"], facts["exit_code"])
        assert name == facts["code"]
    assert "http://127.0.0.1:1 was not reached" in facts["error"]


def test_a_namespace_that_may_not_be_listed_is_named(capsys, monkeypatch) -> None:
    """Its letters are not among those of all namespaces; one that was deleted is no matter."""
    errors = {
        "shop/hidden": pr.AdminForbiddenError(403, "stats", "not allowed"),
        "shop/gone": pr.AdminNotFoundError(404, "topics", "not found"),
    }

    def letter_topics(_admin: object, namespace: str, **_options: object) -> list[object]:
        if namespace in errors:
            raise errors[namespace]
        return []

    monkeypatch.setattr("pulsar_retry.cli.dlq._namespaces", lambda _: ["shop/orders", *errors])
    monkeypatch.setattr("pulsar_retry.cli.dlq.letter_topics", letter_topics)
    assert 0 == cli.main(["dlq", "ls", "--json"])

    output = capsys.readouterr()
    assert [] == json.loads(output.out)
    (line,) = output.err.splitlines()
    assert "shop/hidden is left out" in line
    assert "not allowed" in line


def test_a_token_that_is_refused_everywhere(capsys, monkeypatch) -> None:
    """It is an error: nobody knows whether there are letters."""

    def refused(*_: object, **_options: object) -> list[object]:
        raise pr.AdminForbiddenError(401, "topics", "Unauthorized")

    monkeypatch.setattr("pulsar_retry.admin.topics.Namespaces.all", refused)
    monkeypatch.setattr("pulsar_retry.cli.dlq.letter_topics", refused)
    assert 1 == cli.main(["dlq", "ls"])
    output = capsys.readouterr()
    assert ("", True) == (output.out, "Unauthorized" in output.err)


def test_a_redrive_that_leaves_a_topic_out_is_not_complete(capsys, monkeypatch) -> None:
    """It is named, because this role may not read it."""

    def letter_topics(*_: object, left_out: Any, **_options: object) -> list[object]:
        left_out("returns-billing-DLQ is left out: not allowed")
        return []

    monkeypatch.setattr("pulsar_retry.cli._common.redriving.letter_topics", letter_topics)
    assert 1 == cli.main(["redrive", "shop/orders", "--yes"])
    assert "returns-billing-DLQ is left out" in capsys.readouterr().err


def test_the_report_of_a_topic_is_not_lost_with_the_next_one(capsys, monkeypatch) -> None:
    """If that fails, JSON has the topics until then, and the error is told."""

    def run(job: Redrive, _tell: object) -> Redriven:
        if "returns" in job.source:
            raise pr.TopicMissingError("there is no topic")
        return Redriven(source=job.source, job=job.job, dry_run=False, redriven=3)

    monkeypatch.setattr(Redrive, "run", run)
    dlqs = ["orders-billing-DLQ", "returns-billing-DLQ"]
    assert 1 == cli.main(["redrive", *dlqs, "--yes", "--no-audit", "--json"])

    output = capsys.readouterr()
    (done,) = json.loads(output.out)
    assert 3 == done["redriven"]
    assert "topic_missing" == json.loads(output.err)["code"]


def _interrupted_seek() -> pr.SeekError:
    error = pr.SeekError("pulsar://localhost:6650: ResultInterrupted; run it again")
    error.__cause__ = pulsar.Interrupted()
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (click.Abort(), "aborted"),
        (pulsar.Interrupted("Pulsar error: ResultInterrupted"), "aborted"),  # Ctrl-C in C++
        (_interrupted_seek(), "aborted"),
        (pr.TopicMissingError("there is no topic"), "topic_missing"),
        (pr.UnreachableError("x was not reached: it refuses the connection: token"), "forbidden"),
        (pr.UnreachableError("x was not reached: connection refused"), "unreachable"),
        (OSError(28, "No space left on device"), "os"),
        (pulsar.Timeout(), "timeout"),
    ],
)
def test_each_kind_of_error_has_a_code(error, code, capsys, monkeypatch) -> None:
    """Whatever goes wrong, a script reads one line."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("pulsar_retry.ops.overview.letter_topics", fail)
    monkeypatch.setattr("pulsar_retry.cli.dlq.letter_topics", fail)
    assert 1 == cli.main(["dlq", "ls", "public/default", "--json"])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == json.loads(line)["code"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="skipped, because there is no /dev/full")
def test_an_output_that_is_full_is_one_line_and_a_failure() -> None:
    """Also if what was written fails only at the end, when buffers are flushed."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "pulsar_retry", "--help"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=buffered, check=False
        )
    assert (1, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr
