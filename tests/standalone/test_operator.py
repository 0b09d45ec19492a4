"""The operator's verbs on a cluster that asks for a token."""

from __future__ import annotations

import json
import os

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry import cli
from pulsar_retry.replay import Cluster, Redrive
from pulsar_retry.standalone import Standalone

pytestmark = pytest.mark.broker
SHARED = pulsar.ConsumerType.Shared


def test_tokens(monkeypatch, capsys, tmp_path) -> None:
    """From a file, for both protocols; without a right one there is an error that shows none."""
    with Standalone(auth=True, fast_start=True) as broker:
        token_file = tmp_path / "token"
        token_file.write_text(broker.admin_token)
        monkeypatch.setenv("PULSAR_SERVICE_URL", broker.service_url)
        monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)
        cluster = Cluster(
            broker.service_url, admin_url=broker.admin_url, token_file=str(token_file)
        )
        with cluster.client(operation_timeout_seconds=90) as client:
            policy = pr.DeadLetterPolicy(2, initial_subscription_name="keep")
            consumer = client.subscribe(
                "orders",
                "billing",
                consumer_type=SHARED,
                enable_retry=True,
                dead_letter_policy=policy,
            )
            client.create_producer("orders").send(b"tea")
            consumer.dead_letter(consumer.receive(60_000), reason="invalid")

            assert 0 == cli.main(["dlq", "ls", "--json", "--token-file", str(token_file)])
            found = {each["topic"]: each for each in json.loads(capsys.readouterr().out)}
            dlq = "persistent://public/default/orders-billing-DLQ"
            assert 1 == found[dlq]["backlog"]
            assert 0 == cli.main(["doctor", "orders", "billing", "--token-file", str(token_file)])
            assert 1 == Redrive(dlq, cluster=cluster).run().redriven
            assert b"tea" == consumer.receive(60_000).data()

        capsys.readouterr()
        assert 1 == cli.main(["dlq", "ls"])
        assert "(401)" in capsys.readouterr().err
        wrong = broker.admin_token[:-4] + "AAAA"
        monkeypatch.setenv("PULSAR_TOKEN", wrong)
        assert 1 == cli.main(["redrive", dlq, "--yes"])
        errors = capsys.readouterr().err
        assert f"{broker.service_url} was not reached: it refuses the connection" in errors
        assert wrong not in errors
        assert os.environ["PULSAR_TOKEN"] == wrong
