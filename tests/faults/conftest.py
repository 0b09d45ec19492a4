"""Fixtures of every test of a fault: a ledger, and a topic of a broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.standalone import Standalone
from support.faults.balancing import Stage
from support.faults.ledger import Ledger
from support.model.logs import check_log

#: The retries of the policies of `support.faults.handing`.
RETRIES = 4


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Give an empty ledger; at the end, check that it is a behaviour of the model."""
    ledger = Ledger(tmp_path / "ledger")
    yield ledger
    print("the log is a behaviour of the model:", check_log(ledger.path, retries=RETRIES))


@pytest.fixture
def stage(broker: Any, admin: Any, client: pr.Client, topic: str, ledger: Ledger) -> Stage:
    """Give a new topic of the session's broker."""
    return Stage(broker.service_url, admin, client, topic, ledger)


@pytest.fixture
def own_stage(ledger: Ledger, admin: Any, own_broker: Standalone) -> Iterator[Stage]:
    """Give a new topic of a broker that no other module uses."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    admin = attrs.evolve(admin, url=own_broker.admin_url)
    namespace = f"public/{uuid.uuid4().hex}"
    admin.create_namespace(namespace)
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        yield Stage(own_broker.service_url, admin, client, topic, ledger)
