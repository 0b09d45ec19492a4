"""What `push serve` refuses before it opens anything, in the words of the command line."""

from __future__ import annotations

import pytest

from pulsar_retry.cli import main

REFUSED = [
    (["--ack-deadline", "5"], "--ack-deadline 5.0: expected 10 to 600 seconds"),
    (["--ack-deadline", "soon"], "--ack-deadline 'soon': expected a duration"),
    (["--endpoint", "http://example.com"], "--endpoint 'http://example.com': expected an https"),
    (["--endpoint", "http://example.com"], "to loopback, or with --allow-http"),
    (["--no-endpoint"], "Missing option '--endpoint' (env var: 'PULSAR_PUSH_ENDPOINT')"),
    (["--listen", "8080"], "--listen '8080'"),
    (["--service-account", "/nowhere.json"], "--service-account '/nowhere.json (FileNotFound"),
    (["--service-account", "{bad}"], "--service-account 'ValueError': expected an RSA key"),
    (["--ca-file", "/nowhere"], "--ca-file '/nowhere"),
    (["--max-outstanding", "0"], "--max-outstanding 0: expected"),
    (["--max-rate", "0"], "--max-rate 0.0: expected"),
    (["--dead-letter-status", "204"], "--dead-letter-status 204: expected"),
    (["--max-delivery-attempts", "3"], "--max-delivery-attempts 3"),
    (["--backoff", "sometimes"], "--backoff 'sometimes'"),
    (["--retry-letter-topic", "r"], "--retry-letter-topic 'r'"),
    (["--audience", "x"], "--audience 'x': expected a service account too"),
]


@pytest.mark.parametrize(("arguments", "told"), REFUSED)
def test_wrong_usage(arguments, told, tmp_path, capsys):
    """Exit code 2 and a line that names the option."""
    bad = tmp_path / "bad.json"
    bad.write_text('{"client_email": "a@example.com", "private_key": "none"}')
    arguments = [each.format(bad=bad) for each in arguments]
    usual = ["--topic", "t", "--subscription", "s"]
    if "--no-endpoint" in arguments:
        arguments.remove("--no-endpoint")
    else:
        usual += ["--endpoint", "http://localhost:1/"]
    code = main(["push", "serve", *usual, *arguments])
    out, err = capsys.readouterr()
    assert (2, "") == (code, out), err
    assert told in err
    assert "=" not in err.partition("error: ")[2].partition(":")[0]
