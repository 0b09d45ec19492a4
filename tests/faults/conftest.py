"""What every test of a fault uses: a ledger, and workers that go on until it is balanced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from balancing import Stage
from ledger import Ledger

import pulsar_retry as pr


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Give an empty ledger."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def stage(broker: Any, admin: Any, client: pr.Client, topic: str, ledger: Ledger) -> Stage:
    """Give a new topic of the session's broker."""
    return Stage(broker.service_url, admin, client, topic, ledger)
